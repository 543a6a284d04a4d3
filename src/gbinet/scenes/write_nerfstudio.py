"""A scene as nerfstudio's `transforms.json`, with depth maps, masks and a point cloud where there are any.

Cameras there are OpenGL's (x right, y up, looking along -z) and lead from the camera to the world. Nerfstudio
multiplies stored depths by 0.001 (`depth_unit_scale_factor`), whatever the file type.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from gbinet.errors import InputError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.depth_files import write_depth
from gbinet.formats.ply import write_ply
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene, View
from gbinet.scenes.writing import (
    DepthMaps,
    copy_image,
    copy_mask,
    index_by_name,
    pinhole_parameters,
    safe_name,
)

DEPTH_SCALE = 0.001  # nerfstudio's default: a stored value times this is the depth


def write_nerfstudio(
    scene: Scene, folder: str | Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None
) -> Path:
    """`cloud` becomes `points.ply`; without it the scene's sparse points do, if it has any."""
    folder = Path(folder)
    frames = [_frame(view, folder) for view in scene.views]
    indices = index_by_name(scene.views)
    suffix = _depth_suffix(scene)
    for view, depth_map in depth_maps:
        name = f"depths/{safe_name(view)}{suffix}"
        write_depth(folder / name, depth_map.depth, scale=DEPTH_SCALE, made_by=depth_map.made_by)
        frames[indices[view.name]]["depth_file_path"] = name
    contents: dict[str, Any] = {"camera_model": "OPENCV", **_shared_intrinsics(frames), "frames": frames}
    if cloud is None and scene.points is not None and len(scene.points.xyz):
        cloud = PointCloud(scene.points.xyz, scene.points.rgb)
    if cloud is not None:
        write_ply(folder / "points.ply", cloud)
        contents["ply_file_path"] = "points.ply"
    with atomic_path(folder / "transforms.json") as temporary:
        temporary.write_text(json.dumps(contents, indent=1, allow_nan=False))
    return folder


def opengl_world_from_cam(view: View) -> torch.Tensor:
    """[4, 4] float64: turn the y and z axes of the camera round."""
    pose = view.camera.cam_from_world.to("cpu", torch.float64)
    try:
        world_from_cam = torch.linalg.inv(pose)
    except RuntimeError as error:
        raise InputError(f"the pose of view {view.name} cannot be inverted") from error
    turned: torch.Tensor = world_from_cam * torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    return turned


def _frame(view: View, folder: Path) -> dict[str, Any]:
    fx, fy, cx, cy = pinhole_parameters(view)
    image = copy_image(view, folder / "images", safe_name(view))
    frame: dict[str, Any] = {
        "file_path": image.relative_to(folder).as_posix(),
        "w": view.camera.width,
        "h": view.camera.height,
        "fl_x": fx,
        "fl_y": fy,
        "cx": cx,
        "cy": cy,
        "transform_matrix": opengl_world_from_cam(view).tolist(),
    }
    mask = copy_mask(view, folder / "masks" / f"{safe_name(view)}.png")
    if mask is not None:
        frame["mask_path"] = mask.relative_to(folder).as_posix()
    return frame


def _shared_intrinsics(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Where all frames agree, the intrinsics move to the top: there older readers look for them."""
    keys = ("w", "h", "fl_x", "fl_y", "cx", "cy")
    if len({tuple(frame[key] for key in keys) for frame in frames}) != 1:
        return {}
    shared = {key: frames[0][key] for key in keys}
    for frame in frames:
        for key in keys:
            del frame[key]
    return shared


def _depth_suffix(scene: Scene) -> str:
    """16-bit PNG where steps of 0.001 cover the range and are fine enough; else float arrays."""
    ranges = [view.depth_range for view in scene.views]
    fits = all(r is not None and r.near >= 0.25 and r.far <= 60 for r in ranges)
    return ".png" if fits else ".npy"
