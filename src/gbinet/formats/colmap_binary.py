"""COLMAP's `cameras.bin`, `images.bin`, `points3D.bin`. Counts are checked against the bytes left."""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError
from gbinet.formats.colmap import (
    MODEL_NAMES,
    MODELS,
    ColmapCamera,
    ColmapImage,
    ColmapPoints,
    make_camera,
    make_pose,
    pose_values,
)
from gbinet.formats.reading import open_sized

_MAX_NAME = 4096
_BLOCK = 1 << 16  # points turned into arrays at a time
_POINT = np.dtype(
    [("id", "<u8"), ("xyz", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("length", "<u8")]
)  # packed, as in the file
_OBSERVATION = np.dtype([("pixel", "<f8", 2), ("point", "<i8")])  # point -1 = none
_TRACK = np.dtype([("image", "<u4"), ("index", "<u4")])


class _Cursor:
    """A position in a file's bytes that refuses to run past the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_sized(path) as (file, _):
            self.data = file.read()
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    @property
    def position(self) -> str:
        return f"byte {self.at}"

    def error(self, problem: str) -> FormatError:
        return FormatError(self.path, problem, self.position)

    def unpack(self, layout: str, what: str) -> tuple[int | float, ...]:
        size = struct.calcsize(layout)
        if size > self.left:
            raise self.error(f"cut short in {what}")
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += size
        return values

    def count(self, what: str, record: int) -> int:
        """A 64-bit count of records of at least `record` bytes each, which must fit into the rest."""
        (value,) = self.unpack("<Q", f"the number of {what}")
        if value > self.left // record:
            raise self.error(f"claims {value} {what}, but only {self.left} bytes follow")
        return int(value)

    def floats(self, count: int, what: str) -> NDArray[np.float64]:
        return np.array(self.unpack(f"<{count}d", what), dtype=np.float64)

    def name(self) -> str:
        end = self.data.find(b"\0", self.at, self.at + _MAX_NAME)
        if end < 0:
            raise self.error("an image name does not end")
        name = os.fsdecode(self.data[self.at : end])  # a name is bytes, and need not be UTF-8
        if not name:
            raise self.error("an image has an empty name")
        self.at = end + 1
        return name


def read_cameras(path: Path) -> dict[int, ColmapCamera]:
    cursor = _Cursor(path)
    cameras: dict[int, ColmapCamera] = {}
    for _ in range(cursor.count("cameras", 24 + 16)):
        position = cursor.position
        id, model_id, width, height = (int(v) for v in cursor.unpack("<IiQQ", "a camera"))
        model = MODEL_NAMES.get(model_id)
        if model is None:
            raise FormatError(path, f"camera {id} has the unknown or unsupported model {model_id}", position)
        params = cursor.floats(MODELS[model].num_params, "a camera's parameters")
        cameras[id] = make_camera(path, position, id, model, width, height, params)
    return cameras


def read_images(path: Path, *, observations: bool = False) -> list[ColmapImage]:
    cursor = _Cursor(path)
    images = []
    for _ in range(cursor.count("images", 4 + 56 + 4 + 2 + 8)):
        position = cursor.position
        (id,) = cursor.unpack("<I", "an image")
        pose = make_pose(path, position, cursor.floats(7, "a pose"))
        (camera_id,) = cursor.unpack("<I", "an image")
        name = cursor.name()
        count = cursor.count("observations", _OBSERVATION.itemsize)
        pixels, point_ids = None, None
        if observations:
            rows = np.frombuffer(cursor.data, _OBSERVATION, count, cursor.at)
            pixels, point_ids = rows["pixel"].copy(), rows["point"].copy()
        cursor.at += count * _OBSERVATION.itemsize
        images.append(ColmapImage(int(id), name, int(camera_id), pose, pixels, point_ids))
    return images


def read_points(path: Path) -> ColmapPoints:
    cursor = _Cursor(path)
    count = cursor.count("points", _POINT.itemsize)
    data = cursor.data
    fixed = np.empty(count, _POINT)
    tracks: list[NDArray[np.int64]] = []
    for start in range(0, count, _BLOCK):
        heads: list[bytes] = []
        tails: list[bytes] = []
        for _ in range(min(_BLOCK, count - start)):
            at = cursor.at + _POINT.itemsize
            end = at + _TRACK.itemsize * int.from_bytes(data[at - 8 : at], "little")
            if end > len(data):
                raise cursor.error(f"a point claims to be seen {(end - at) // 8} times; the file is shorter")
            heads.append(data[cursor.at : at])
            tails.append(data[at:end])
            cursor.at = end
        fixed[start : start + _BLOCK] = np.frombuffer(b"".join(heads), _POINT)
        tracks.append(np.frombuffer(b"".join(tails), _TRACK)["image"].astype(np.int64))
    if not np.isfinite(fixed["xyz"]).all():
        row = int(np.flatnonzero(~np.isfinite(fixed["xyz"]).all(axis=1))[0])
        raise FormatError(path, f"point {fixed['id'][row]} is not finite", f"record {row}")
    return ColmapPoints(
        fixed["id"].astype(np.int64),
        fixed["xyz"].copy(),
        fixed["rgb"].copy(),
        np.concatenate([[0], np.cumsum(fixed["length"].astype(np.int64))]),
        np.concatenate(tracks) if tracks else np.zeros(0, np.int64),
        error=np.where(np.isfinite(fixed["error"]), fixed["error"], -1.0),
    )


# ---- writing -----------------------------------------------------------------------------------------------


def cameras_bytes(cameras: dict[int, ColmapCamera]) -> bytes:
    parts = [struct.pack("<Q", len(cameras))]
    for id, camera in sorted(cameras.items()):
        head = struct.pack("<IiQQ", id, MODELS[camera.model].id, camera.width, camera.height)
        parts.append(head + camera.params.astype("<f8").tobytes())
    return b"".join(parts)


def images_bytes(images: list[ColmapImage]) -> bytes:
    parts = [struct.pack("<Q", len(images))]
    for image in images:
        rows = np.zeros(0 if image.pixels is None else len(image.pixels), _OBSERVATION)
        if image.pixels is not None and image.point_ids is not None:
            rows["pixel"], rows["point"] = image.pixels, image.point_ids
        parts.append(struct.pack("<I7dI", image.id, *pose_values(image.cam_from_world), image.camera_id))
        parts.append(image.name.encode() + b"\0" + struct.pack("<Q", len(rows)) + rows.tobytes())
    return b"".join(parts)


def points_bytes(points: ColmapPoints) -> bytes:
    heads = np.zeros(len(points.ids), _POINT)
    heads["id"], heads["xyz"], heads["rgb"] = points.ids, points.xyz, points.rgb
    heads["error"] = points.known_error
    heads["length"] = np.diff(points.track_start)
    tracks = np.zeros(len(points.image_ids), _TRACK)
    tracks["image"], tracks["index"] = points.image_ids, 0 if points.indices is None else points.indices
    parts = [struct.pack("<Q", len(heads))]
    for head, (start, end) in zip(heads, itertools.pairwise(points.track_start), strict=True):
        parts.append(head.tobytes() + tracks[start:end].tobytes())
    return b"".join(parts)
