"""All depth maps of a scene as pictures, with their cameras beside them; written, not read as a scene.

`cameras.json` holds for every map its file, its photo, K, cam_from_world, width and height, and what a stored
value must be multiplied with: a 16-bit PNG holds whole steps of `depth_scale`, the power of ten that fits the
farthest depth of the scene.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from gbinet.errors import InputError
from gbinet.formats.atomic import write_json
from gbinet.formats.depth_files import write_depth
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.scenes.kind import DepthMaps, Kind, Writer

CAMERAS = "cameras.json"
_LARGEST = 65535  # of 16 bits


def write(
    suffix: str, scene: Scene, folder: Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None
) -> Path:
    """Write `<view>.png` or `<view>.exr` and `cameras.json`."""
    step = 1.0 if suffix == ".exr" else _fitting(scene)
    entries = []
    for view, depth_map in depth_maps:
        if suffix == ".png" and float(depth_map.depth.max()) > step * _LARGEST:
            raise InputError(
                f"{view.name}: a depth of {float(depth_map.depth.max()):g} lies far outside the views' depth "
                "ranges and does not fit into 16 bits beside the others; choose depth-exr instead"
            )
        path = write_depth(folder / f"{view.name}{suffix}", depth_map.depth, None, step, depth_map.made_by)
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
    first = [0.5, 0.5]  # see docs/reference/conventions.md
    content = {"depth_scale": step, "unknown_depth": 0, "first_pixel_centre": first, "views": entries}
    write_json(folder / CAMERAS, content)
    return folder


def _fitting(scene: Scene) -> float:
    far = max((view.depth_range.far for view in scene.views if view.depth_range is not None), default=65.0)
    return 10.0 ** math.ceil(math.log10(1.05 * far / _LARGEST))


KIND = Kind(
    "depth-pictures",
    "depth maps as pictures",
    CAMERAS,
    writers=(
        Writer("depth-png", partial(write, ".png"), depth="needed"),
        Writer("depth-exr", partial(write, ".exr"), depth="needed"),
    ),
)
