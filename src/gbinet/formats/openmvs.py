"""OpenMVS: depth maps (`.dmap`, version "DR"), and its scenes (`scene.mvs`), written.

OpenMVS counts pixel coordinates from the centre of the first pixel, so K is shifted by half a pixel when it
is written, and back when it is read. K belongs to the full image even where the map is smaller. Normals are
in the frame of the camera.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from gbinet.camera import Camera, pixel_centres
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import atomic_file
from gbinet.formats.reading import open_sized, read_exactly
from gbinet.scene import Scene, SparsePoints

Array = np.ndarray[Any, Any]

_HEADER = struct.Struct("<2sBBIIIIff")  # magic, contents, padding, image w h, depth w h, near, far
_CAMERA = struct.Struct("<9d9d3d")  # K, R, C
_INTERFACE_VERSION = 5  # of the MVSI stream: the first that knows masks
_HAS_DEPTH, _HAS_NORMAL, _HAS_CONFIDENCE = 1, 2, 4


@dataclass(frozen=True)
class OpenMVSDepth:
    """The contents of a .dmap file."""

    depth: Array  # [H, W] float32, 0 = unknown
    image_camera: Camera  # of the full image
    image_name: str
    view_ids: tuple[int, ...]  # of the view itself, then of its neighbours
    near: float
    far: float
    normals: Array | None = None  # [H, W, 3] float32, camera frame
    confidence: Array | None = None  # [H, W] float32


def write_dmap(
    path: str | Path,
    depth_map: DepthMap,
    image_size: tuple[int, int],
    image_name: str,
    view_ids: Sequence[int],
) -> Path:
    """Write depth, normals (from the depth) and, where known, confidence.

    image_size is (width, height) of the full image; view_ids begins with the view's own number.
    """
    path, name = Path(path), image_name.encode()
    if not view_ids:
        raise InputError(f"{path}: a .dmap needs the view's own number")
    if len(name) > 65535:
        raise InputError(f"{path}: a .dmap needs an image name of at most 65,535 bytes, got {len(name):,}")
    camera = depth_map.camera.resized(*image_size).to("cpu", torch.float64)
    valid = depth_map.valid
    depth = torch.where(valid, depth_map.depth, 0).float().cpu()
    near, far = (float(depth[depth > 0].min()), float(depth.max())) if bool(valid.any()) else (0.0, 0.0)
    normals = depth_map.normals().cpu() @ camera.cam_from_world[:3, :3].float().T  # camera frame
    contents = _HAS_DEPTH | _HAS_NORMAL | (_HAS_CONFIDENCE if depth_map.confidence is not None else 0)
    height, width = depth.shape
    K = with_opencv_pixels(camera.K)
    numbers = [
        *K.flatten().tolist(),
        *camera.cam_from_world[:3, :3].flatten().tolist(),
        *camera.centre.tolist(),
    ]
    with atomic_file(path) as file:
        file.write(_HEADER.pack(b"DR", contents, 0, *image_size, width, height, near, far))
        file.write(struct.pack("<H", len(name)) + name)
        file.write(struct.pack(f"<I{len(view_ids)}I", len(view_ids), *view_ids))
        file.write(_CAMERA.pack(*numbers))
        for plane in (depth, normals, depth_map.confidence):
            if plane is not None:
                file.write(np.ascontiguousarray(plane.detach().cpu().numpy(), dtype="<f4").data)
    return path


def dmap_image_name(path: str | Path) -> str:
    """The name of the photo that a .dmap belongs to; reads only the header."""
    path = Path(path)
    with open_sized(path) as (file, _):
        return _read_head(path, file)[1]


def _read_head(path: Path, file: BinaryIO) -> tuple[tuple[Any, ...], str]:
    """The fields of _HEADER, and the name of the photo behind it."""
    fields = _HEADER.unpack(read_exactly(path, file, _HEADER.size, "the header"))
    magic, contents, *_ = fields
    if magic != b"DR" or not contents & _HAS_DEPTH:
        raise FormatError(path, "not an OpenMVS depth map: it does not begin with 'DR'", "byte 0")
    (length,) = struct.unpack("<H", read_exactly(path, file, 2, "the image name"))
    return fields, read_exactly(path, file, length, "the image name").decode(errors="replace")


def read_dmap(path: str | Path) -> OpenMVSDepth:
    """Read a depth map with its camera and, where the file has them, normals and confidence."""
    path = Path(path)
    with open_sized(path) as (file, size):
        (_, contents, _, image_w, image_h, width, height, near, far), name = _read_head(path, file)
        (count,) = struct.unpack("<I", read_exactly(path, file, 4, "the view numbers"))
        if count * 4 > size:
            raise FormatError(
                path, f"claims {count} views in a file of {size} bytes", f"byte {file.tell() - 4}"
            )
        view_ids = struct.unpack(f"<{count}I", read_exactly(path, file, 4 * count, "the view numbers"))
        numbers = _CAMERA.unpack(read_exactly(path, file, _CAMERA.size, "the camera"))
        camera = _camera(path, numbers, image_w, image_h)
        has_normals, has_confidence = bool(contents & _HAS_NORMAL), bool(contents & _HAS_CONFIDENCE)
        needed = 4 * width * height * (1 + 3 * has_normals + has_confidence)
        if width == 0 or height == 0 or needed > size - file.tell():
            raise FormatError(
                path, f"cut short: maps of {width}x{height} need {needed} bytes more", f"byte {file.tell()}"
            )

        def plane(channels: int) -> Array:
            values = np.fromfile(file, "<f4", width * height * channels).astype(np.float32, copy=False)
            return values.reshape((height, width, 3) if channels == 3 else (height, width))

        depth = plane(1)
        normals = plane(3) if has_normals else None
        confidence = plane(1) if has_confidence else None
    return OpenMVSDepth(depth, camera, name, view_ids, near, far, normals, confidence)


def _camera(path: Path, numbers: tuple[float, ...], width: int, height: int) -> Camera:
    values = torch.tensor(numbers, dtype=torch.float64)
    rotation, centre = values[9:18].reshape(3, 3), values[18:]
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = rotation
    pose[:3, 3] = -rotation @ centre
    try:
        K = with_opencv_pixels(values[:9].reshape(3, 3), inverse=True)
        return Camera(K, pose, width, height).check()
    except InputError as error:
        raise FormatError(path, str(error), "camera") from error


def with_opencv_pixels(K: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """K [3, 3] for pixel coordinates that are 0 at the centre of the first pixel, or from these to ours."""
    shifted = K.clone()
    shifted[:2, 2] += (1 if inverse else -1) * pixel_centres(1, 1, dtype=K.dtype)[0, 0]
    return shifted


# ---- scene.mvs ---------------------------------------------------------------------------------------------


def write_interface(path: Path, scene: Scene, names: list[str], mask_names: list[str]) -> None:
    """Write `scene.mvs`: platforms (one per view), images, points; every list begins with its length."""
    with atomic_file(path) as file:
        _write_stream(file, scene, names, mask_names)


def _write_stream(file: BinaryIO, scene: Scene, names: list[str], mask_names: list[str]) -> None:
    file.write(struct.pack("<4sII", b"MVSI", _INTERFACE_VERSION, 0))
    file.write(struct.pack("<Q", len(scene.views)))
    for view in scene.views:
        _write_platform(file, view.name, view.camera.to("cpu", torch.float64))
    file.write(struct.pack("<Q", len(scene.views)))
    for index, (name, mask_name) in enumerate(zip(names, mask_names, strict=True)):
        file.write(_string(name) + _string(mask_name))
        file.write(struct.pack("<4I", index, 0, 0, index))  # platform, camera, pose, the image's own number
    points = scene.points
    xyz = [] if points is None else points.xyz.tolist()
    tracks = [] if points is None else _tracks(points)
    file.write(struct.pack("<Q", len(xyz)))
    for position, track in zip(xyz, tracks, strict=True):
        file.write(struct.pack("<3fQ", *position, len(track)))
        for view_index in sorted(track):
            file.write(struct.pack("<If", view_index, 0.0))
    file.write(struct.pack("<Q", 0))  # normals of points
    rgb = None if points is None or points.rgb is None else points.rgb.cpu().numpy()
    file.write(struct.pack("<Q", 0 if rgb is None else len(rgb)))
    if rgb is not None:
        file.write(np.ascontiguousarray(rgb[:, ::-1]).tobytes())  # OpenMVS stores blue first
    file.write(struct.pack("<3Q", 0, 0, 0))  # lines, their normals and colours
    file.write(np.eye(4, dtype="<f8").tobytes())  # transform to another frame: none


def _write_platform(file: BinaryIO, name: str, camera: Camera) -> None:
    file.write(_string(name) + struct.pack("<Q", 1))  # one camera
    file.write(_string(name) + _string("") + struct.pack("<II", camera.width, camera.height))
    for values in (with_opencv_pixels(camera.K), torch.eye(3), torch.zeros(3)):  # in the platform's frame
        file.write(values.numpy().astype("<f8").tobytes())
    file.write(struct.pack("<Q", 1))  # one pose
    for values in (camera.cam_from_world[:3, :3], camera.centre):
        file.write(np.ascontiguousarray(values.numpy(), dtype="<f8").tobytes())


def _tracks(points: SparsePoints) -> list[list[int]]:
    """Indices of the views that see each point."""
    if points.view_index is None or points.track_start is None:
        return [[] for _ in points.xyz]
    flat = points.view_index.tolist()
    return [flat[a:b] for a, b in itertools.pairwise(points.track_start.tolist())]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
