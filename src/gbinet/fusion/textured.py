"""A mesh painted with the photos: cut open, laid flat, painted, written as .glb and .obj."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.formats.textured_mesh import TexturedMesh, write_glb, write_obj
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.paint import paint
from gbinet.fusion.sources import DepthSource
from gbinet.fusion.unwrap import unwrap
from gbinet.progress import Progress
from gbinet.scene import Scene

_SMALLEST, _LARGEST = 512, 4096  # texels along a side of the texture
_TEXELS_PER_FACE = 20  # at least, with a triangle's share of the padding between charts
_FILLED = 0.6  # share of the texture that charts fill, about


def write_textured(
    scene: Scene,
    depths: DepthSource,
    vertices: NDArray[np.float64],
    faces: NDArray[np.int64],
    path: Path,
    config: FusionConfig | None = None,
    up: NDArray[np.float64] | None = None,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """`path` with the endings .glb and .obj; the picture has about the photos' own resolution."""
    flat = unwrap(vertices, faces, picture_size(scene, vertices, faces))
    picture = paint(scene, depths, flat, config or FusionConfig(), progress)
    mesh = TexturedMesh(flat.vertices, flat.faces, flat.uv, picture)
    return (
        write_glb(path.with_suffix(".glb"), mesh, upwards(scene) if up is None else up),
        write_obj(path.with_suffix(".obj"), mesh),
    )


def picture_size(scene: Scene, vertices: NDArray[np.float64], faces: NDArray[np.int64]) -> int:
    """Texels a side: two for a pixel of the nearest photo, and some for every triangle; a multiple of 256."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    area = float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum()) / 2
    middles = (a + b + c)[:: max(1, len(a) // 2000)] / 3
    finest = np.full(len(middles), math.inf)
    for view in scene.views:
        distance = np.linalg.norm(middles - view.camera.centre.double().numpy(), axis=1)
        finest = np.minimum(finest, distance / float(view.camera.K[0, 0]))
    side = max(
        2 * math.sqrt(area / _FILLED) / float(np.median(finest)), math.sqrt(_TEXELS_PER_FACE * len(faces))
    )
    return int(np.clip(math.ceil(side / 256) * 256, _SMALLEST, _LARGEST))


def upwards(scene: Scene) -> NDArray[np.float64]:
    """Which way is up, as far as photos tell: where their upper edges point on average."""
    poses = torch.stack([view.camera.cam_from_world for view in scene.views]).double()
    up: NDArray[np.float64] = -poses[:, 1, :3].mean(0).numpy()
    return (
        up if np.linalg.norm(up) > 0.3 else -poses[:, 2, :3].mean(0).numpy()
    )  # they point everywhere: against the viewing direction
