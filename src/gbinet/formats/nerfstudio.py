"""nerfstudio's and instant-ngp's `transforms.json`.

The file has OpenGL's cameras (x right, y up, looking along -z) as world_from_cam; they are read as
cam_from_world with our axes. Intrinsics stand at the top, in each frame, or in both (the frame wins).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import write_text
from gbinet.formats.colmap import MAX_SIDE, ColmapCamera, make_camera, pinhole_parameters
from gbinet.formats.reading import read_json
from gbinet.scene import View

DEPTH_SCALE = 0.001  # nerfstudio's default, whatever the file type: a stored value times this is the depth
_MAX_BYTES = 256 * 1024 * 1024
_DISTORTION = ("k1", "k2", "k3", "k4", "p1", "p2")
_NUMBERS = ("w", "h", "fl_x", "fl_y", "cx", "cy", "camera_angle_x", "camera_angle_y", *_DISTORTION)
_SHARED = ("w", "h", "fl_x", "fl_y", "cx", "cy")  # numbers that frames may have in common
_OPENGL_AXES = (1.0, -1.0, -1.0, 1.0)  # factors of the columns of world_from_cam, there and back
_FISHEYE = ("OPENCV_FISHEYE", "FISHEYE")
_PERSPECTIVE = (
    "OPENCV",
    "PINHOLE",
    "SIMPLE_PINHOLE",
    "PERSPECTIVE",
    "SIMPLE_RADIAL",
    "RADIAL",
    "FULL_OPENCV",
)


@dataclass(frozen=True)
class TransformsFrame:
    """One entry of `frames`."""

    path: Path  # of the json file, for messages
    position: str  # e.g. "frames[3]"
    file_path: str
    cam_from_world: NDArray[np.float64]  # [4, 4], our axes
    model: str  # camera_model
    numbers: dict[str, float]  # those of _NUMBERS that are given
    mask_path: str | None
    depth_path: str | None

    def lens(self, image_size: tuple[int, int]) -> ColmapCamera:
        """The camera; the image's size is used where the file gives none."""
        n = self.numbers
        width, height = (int(n.get(key, size)) for key, size in zip(("w", "h"), image_size, strict=True))
        fx = n["fl_x"] if "fl_x" in n else _focal(width, n.get("camera_angle_x"))
        fy = n["fl_y"] if "fl_y" in n else _focal(height, n.get("camera_angle_y"))
        fx = fx if fx is not None else fy
        if fx is None:
            raise FormatError(self.path, "has neither fl_x nor camera_angle_x", self.position)
        pinhole = [fx, fy if fy is not None else fx, n.get("cx", width / 2), n.get("cy", height / 2)]
        k1, k2, k3, k4, p1, p2 = (n.get(key, 0.0) for key in _DISTORTION)
        if self.model in _FISHEYE:
            model, extra = "OPENCV_FISHEYE", [k1, k2, k3, k4]
        elif k3 or k4:
            model, extra = "FULL_OPENCV", [k1, k2, p1, p2, k3, k4, 0.0, 0.0]
        else:
            model, extra = "OPENCV", [k1, k2, p1, p2]
        params = np.array([*pinhole, *extra])
        return make_camera(self.path, self.position, 1, model, width, height, params)


@dataclass(frozen=True)
class Transforms:
    frames: list[TransformsFrame]
    ply_file_path: str | None
    depth_scale: float | None  # depth_unit_scale_factor, where the file has it


def read_transforms(path: Path) -> Transforms:
    top = read_json(path, _MAX_BYTES)
    if not isinstance(top, dict) or not isinstance(top.get("frames"), list):
        raise FormatError(path, "is not a transforms.json: it must be an object with a list `frames`")
    shared = _intrinsics(path, top, "top level")
    frames = []
    for index, entry in enumerate(top["frames"]):
        position = f"frames[{index}]"
        if not isinstance(entry, dict):
            raise FormatError(path, "a frame must be an object", position)
        file_path = _text(path, entry, "file_path", position)
        if not file_path:
            raise FormatError(path, "a frame needs `file_path`", position)
        pose = _pose(path, entry.get("transform_matrix"), position)
        model = entry.get("camera_model", top.get("camera_model", "OPENCV"))
        if model not in (*_FISHEYE, *_PERSPECTIVE):
            raise FormatError(path, f"the camera model {str(model)[:40]!r} is not supported", position)
        numbers = {**shared, **_intrinsics(path, entry, position)}
        mask = _text(path, entry, "mask_path", position)
        depth = _text(path, entry, "depth_file_path", position)
        frames.append(TransformsFrame(path, position, file_path, pose, model, numbers, mask, depth))
    scale = _number(path, top, "depth_unit_scale_factor", "top level")
    if scale is not None and scale <= 0:
        raise FormatError(path, f"depth_unit_scale_factor {scale:g} is not positive")
    return Transforms(frames, _text(path, top, "ply_file_path", "top level"), scale)


def _pose(path: Path, value: Any, position: str) -> NDArray[np.float64]:
    """transform_matrix (4x4 or 3x4, OpenGL, camera to world) -> cam_from_world, [4, 4]."""
    rows = value if isinstance(value, list) and len(value) in (3, 4) else []
    if not rows or not all(isinstance(row, list) and len(row) == 4 for row in rows):
        raise FormatError(path, "`transform_matrix` must have 3 or 4 rows of 4 numbers", position)
    world_from_cam = np.eye(4)
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            world_from_cam[i, j] = _as_float(path, number, f"{position}.transform_matrix[{i}][{j}]")
    if np.abs(world_from_cam[3] - [0, 0, 0, 1]).max() > 1e-6:
        raise FormatError(path, "the last row of `transform_matrix` must be 0 0 0 1", position)
    world_from_cam *= _OPENGL_AXES  # y down, z forward
    try:
        return np.linalg.inv(world_from_cam).astype(np.float64)
    except np.linalg.LinAlgError as error:
        raise FormatError(path, "`transform_matrix` cannot be inverted", position) from error


def _intrinsics(path: Path, entry: dict[str, Any], position: str) -> dict[str, float]:
    found = {key: _number(path, entry, key, position) for key in _NUMBERS if key in entry}
    numbers = {key: value for key, value in found.items() if value is not None}
    for key in ("w", "h"):
        if key in numbers and not 1 <= numbers[key] <= MAX_SIDE:
            raise FormatError(path, f"`{key}` = {numbers[key]:g} is not an image size", position)
    return numbers


def _number(path: Path, entry: dict[str, Any], key: str, position: str) -> float | None:
    value = entry.get(key)
    return None if value is None else _as_float(path, value, f"{position}.{key}")


def _as_float(path: Path, value: Any, position: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(path, f"expected a number, found {str(value)[:40]!r}", position)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormatError(path, "holds a value that is not finite", position)
    return number


def _text(path: Path, entry: dict[str, Any], key: str, position: str) -> str | None:
    value = entry.get(key)
    if value is not None and (not isinstance(value, str) or "\0" in value or len(value) > 4096):
        raise FormatError(path, f"`{key}` is not a file name", position)
    return value


def _focal(side: int, angle: float | None) -> float | None:
    if angle is None or not 0 < angle < math.pi:
        return None
    return 0.5 * side / math.tan(0.5 * angle)


# ---- writing -----------------------------------------------------------------------------------------------


def opengl_world_from_cam(view: View) -> NDArray[np.float64]:  # [4, 4]
    try:
        world_from_cam: NDArray[np.float64] = np.linalg.inv(view.camera.cam_from_world.cpu().double().numpy())
    except np.linalg.LinAlgError as error:
        raise InputError(f"the pose of view {view.name} cannot be inverted") from error
    return world_from_cam * _OPENGL_AXES


def frame_entry(view: View, file_path: str, mask_path: str | None) -> dict[str, Any]:
    """An entry of `frames`. File names are relative to the folder of transforms.json."""
    size = (view.camera.width, view.camera.height)
    entry: dict[str, Any] = dict(zip(_SHARED, (*size, *pinhole_parameters(view)), strict=True))
    entry |= {"file_path": file_path, "transform_matrix": opengl_world_from_cam(view).tolist()}
    return entry if mask_path is None else {**entry, "mask_path": mask_path}


def write_transforms(path: Path, frames: list[dict[str, Any]], ply_file_path: str | None) -> None:
    """Write the file; intrinsics that all frames share go to the top, where older readers expect them."""
    contents: dict[str, Any] = {"camera_model": "OPENCV"}
    if len({tuple(frame[key] for key in _SHARED) for frame in frames}) == 1:
        contents |= {key: frames[0][key] for key in _SHARED}
        frames = [{key: v for key, v in frame.items() if key not in _SHARED} for frame in frames]
    contents["frames"] = frames
    if ply_file_path is not None:
        contents["ply_file_path"] = ply_file_path
    write_text(path, json.dumps(contents, indent=1, allow_nan=False))
