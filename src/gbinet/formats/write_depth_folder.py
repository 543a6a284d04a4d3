"""All depth maps of a scene as pictures, with their cameras beside them.

`cameras.json` holds for every map its file, its photo, K, cam_from_world, width and height, and what a stored
value must be multiplied with: a 16-bit PNG holds whole steps of `depth_scale`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from gbinet.depthmap import DepthMap
from gbinet.errors import check_positive
from gbinet.formats.atomic import atomic_path
from gbinet.formats.depth_files import write_depth
from gbinet.scene import Scene, View

DepthPictures = Literal["depth-png", "depth-exr"]
_LARGEST = 65535  # of 16 bits


def write_depth_folder(
    scene: Scene,
    folder: Path,
    kind: DepthPictures,
    depth_maps: Iterable[tuple[View, DepthMap]],
    scale: float | None = None,
) -> Path:
    """Write `<view>.png` or `<view>.exr` and `cameras.json`.

    scale  depth of one step of a PNG; by default the power of ten that fits the farthest depth of the scene
    """
    suffix = kind.removeprefix("depth-")
    step = 1.0 if suffix == "exr" else (scale or _fitting(scene))
    check_positive(f"{folder}: the scale of stored depths", step)
    entries = []
    for view, depth_map in depth_maps:
        path = write_depth(folder / f"{view.name}.{suffix}", depth_map.depth, None, step, depth_map.made_by)
        camera = depth_map.camera
        entries.append(
            {
                "depth": path.name,
                "photo": (view.original_path or view.image_path).name,
                "width": camera.width,
                "height": camera.height,
                "K": camera.K.tolist(),
                "cam_from_world": camera.cam_from_world.tolist(),
            }
        )
    content = {
        "depth_scale": step,
        "unknown_depth": 0,
        "pixel_centre_of_first_pixel": [0.5, 0.5],
        "views": entries,
    }
    with atomic_path(folder / "cameras.json") as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
    return folder


def _fitting(scene: Scene) -> float:
    far = max((view.depth_range.far for view in scene.views if view.depth_range is not None), default=65.0)
    return 10.0 ** math.ceil(math.log10(1.05 * far / _LARGEST))
