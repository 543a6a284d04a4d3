from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import RADIUS, SceneMaker, true_depth

from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError, InputError
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.fusion.mesh import Mesher, MeshKind, default_voxel
from gbinet.scene import Scene

CONFIG = FusionConfig(min_views=2)


class Exact:
    """Exact depth maps; confidence 0 where `sure` says so."""

    def __init__(self, scene: Scene, sure: float = 1.0) -> None:
        self.scene, self.sure = scene, sure

    def load(self, index: int) -> DepthMap | None:
        camera = self.scene.views[index].camera
        depth = true_depth(camera)
        return DepthMap(depth, camera, torch.full_like(depth, self.sure))


def meshed(scene: Scene, kind: MeshKind, folder: Path, voxel: float | None = None) -> np.ndarray:
    """Vertices [N, 3] of the mesh."""
    o3d = pytest.importorskip("open3d")
    maps = Exact(scene)
    mesher = Mesher(scene, maps, kind, CONFIG, voxel)
    fuse(scene, maps, folder / "cloud.ply", CONFIG, on_view=mesher.add)
    (path,) = mesher.write(folder / "cloud.ply", folder / "mesh.ply")
    mesh = o3d.io.read_triangle_mesh(str(path))
    colours = np.asarray(mesh.vertex_colors)
    assert len(mesh.triangles) > 500 and colours.std() > 0.05 and colours.min() >= 0 and colours.max() <= 1
    return np.asarray(mesh.vertices)


@pytest.mark.parametrize("kind", ["tsdf", "poisson"])
def test_a_mesh_of_exact_depth_lies_on_the_surface(
    ball_scene: SceneMaker, tmp_path: Path, kind: MeshKind
) -> None:
    scene = ball_scene(width=256, height=192)
    vertices = meshed(scene, kind, tmp_path)
    off = np.minimum(abs(np.linalg.norm(vertices, axis=1) - RADIUS), abs(vertices[:, 1] - RADIUS))
    # A pixel is 1/64 of the distance of 4: half a pixel's shift would show as 0.008.
    assert np.median(off) < 0.003 and np.quantile(off, 0.8) < 0.02


def test_voxels_follow_the_size_of_a_pixel(ball_scene: SceneMaker) -> None:
    coarse, fine = (ball_scene(width=w, height=w * 3 // 4) for w in (64, 128))
    size = default_voxel(coarse, Exact(coarse), FusionConfig(min_confidence=0.4))
    assert size == pytest.approx(
        2 * default_voxel(fine, Exact(fine), FusionConfig(min_confidence=0.4)), rel=0.05
    )
    assert 2 * 3 / 64 < size < 2 * 6 / 64  # surfaces are 3 to 6 away, the focal length is 64
    assert default_voxel(coarse, Exact(coarse, 0.1), FusionConfig(min_confidence=0.4)) == pytest.approx(
        size
    )  # none confident: all count


def test_bad_voxels_and_a_missing_library_are_reported(
    ball_scene: SceneMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene()
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "open3d", None)
        with pytest.raises(GBiNetError, match=r"gbinet\[mesh\]"):
            Mesher(scene, Exact(scene), "poisson", CONFIG, None)
    pytest.importorskip("open3d")
    with pytest.raises(InputError, match="positive"):
        Mesher(scene, Exact(scene), "tsdf", CONFIG, -1.0)
