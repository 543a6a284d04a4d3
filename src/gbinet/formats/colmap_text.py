"""COLMAP's `cameras.txt`, `images.txt`, `points3D.txt`, line by line."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.formats.colmap import (
    MODELS,
    ColmapCamera,
    ColmapImage,
    ColmapPoints,
    make_camera,
    make_pose,
    pose_values,
)
from gbinet.formats.reading import open_sized
from gbinet.formats.textfile import Line

_MAX_ID = 2**53  # whole numbers beyond this are not exact as floats


@contextmanager
def _strict() -> Iterator[None]:
    """numpy only warns about text that is not a number; here, that is an error. Once per file: slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        yield


@_strict()
def read_cameras(path: Path) -> dict[int, ColmapCamera]:
    cameras: dict[int, ColmapCamera] = {}
    for line in _data_lines(path):
        words = line.text.split(maxsplit=4)
        if len(words) < 5:
            raise line.error("expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS")
        id, width, height = (_whole(line, words[i]) for i in (0, 2, 3))
        if words[1] not in MODELS:
            raise line.error(f"the camera model {words[1][:40]!r} is unknown or not supported")
        params = _numbers(line, words[4])
        if len(params) != MODELS[words[1]].num_params:
            raise line.error(f"{words[1]} has {MODELS[words[1]].num_params} parameters, found {len(params)}")
        cameras[id] = make_camera(path, f"line {line.number}", id, words[1], width, height, params)
    return cameras


@_strict()
def read_images(path: Path, *, observations: bool = False) -> list[ColmapImage]:
    images = []
    lines = _all_lines(path)
    for line in lines:
        if not line.text or line.text.startswith("#"):
            continue
        words = line.text.split(maxsplit=9)
        if len(words) < 10:
            raise line.error("expected IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME")
        pose = make_pose(path, f"line {line.number}", _numbers(line, " ".join(words[1:8]), 7))
        image = (_whole(line, words[0]), words[9], _whole(line, words[8]), pose)
        # The observations stand in the very next line, which may be empty or, at the end of a file, absent.
        seen = next(lines, Line(path, line.number + 1, ""))
        pixels, point_ids = _observations(seen) if observations else (None, None)
        images.append(ColmapImage(*image, pixels, point_ids))
    return images


def _observations(line: Line) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    values = _numbers(line, line.text)
    if len(values) % 3:
        raise line.error(f"observations are X Y POINT3D_ID; {len(values)} numbers are not a multiple of 3")
    rows = values.reshape(-1, 3)
    if len(rows) and np.abs(rows[:, 2]).max() > _MAX_ID:
        raise line.error("a point id is too large")
    return rows[:, :2].copy(), rows[:, 2].astype(np.int64)


@_strict()
def read_points(path: Path) -> ColmapPoints:
    fixed: list[NDArray[np.float64]] = []
    tracks: list[NDArray[np.uint32]] = []
    for line in _data_lines(path):
        values = _numbers(line, line.text)
        if len(values) < 8 or len(values) % 2:
            raise line.error("expected POINT3D_ID X Y Z R G B ERROR and pairs of IMAGE_ID POINT2D_IDX")
        ids, colour = values[8::2], values[4:7]
        if not 0 <= values[0] <= _MAX_ID or (len(ids) and not (ids.min() >= 0 and ids.max() < 2**32)):
            raise line.error("an id is negative or too large")
        if not (colour.min() >= 0 and colour.max() <= 255):
            raise line.error("a colour lies outside 0 to 255")
        fixed.append(values[:8].copy())
        tracks.append(ids.astype(np.uint32))
    table = np.stack(fixed) if fixed else np.zeros((0, 8))
    lengths = np.array([0, *(len(track) for track in tracks)], dtype=np.int64)
    return ColmapPoints(
        table[:, 0].astype(np.int64),
        table[:, 1:4].copy(),
        table[:, 4:7].astype(np.uint8),
        np.cumsum(lengths),
        (np.concatenate(tracks) if tracks else np.zeros(0)).astype(np.int64),
        error=table[:, 7].copy(),
    )


# ---- writing -----------------------------------------------------------------------------------------------


def cameras_bytes(cameras: dict[int, ColmapCamera]) -> bytes:
    ordered = sorted(cameras.items())
    rows = [f"{id} {c.model} {c.width} {c.height} {_joined(c.params.tolist())}" for id, c in ordered]
    return _file("CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]", rows)


def images_bytes(images: list[ColmapImage]) -> bytes:
    rows = []
    for image in images:
        rows.append(f"{image.id} {_joined(pose_values(image.cam_from_world))} {image.camera_id} {image.name}")
        pixels = [] if image.pixels is None else image.pixels.tolist()
        points = [] if image.point_ids is None else image.point_ids.tolist()
        rows.append(" ".join(f"{x!r} {y!r} {point}" for (x, y), point in zip(pixels, points, strict=True)))
    names = "IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME, then POINTS2D[] as (X, Y, POINT3D_ID)"
    return _file(names, rows)


def points_bytes(points: ColmapPoints) -> bytes:
    seen = [] if points.indices is None else points.indices.tolist()
    elements = [f"{image} {index}" for image, index in zip(points.image_ids.tolist(), seen, strict=True)]
    rows = []
    spans = itertools.pairwise(points.track_start.tolist())
    columns = (points.ids, points.xyz, points.rgb, points.known_error)
    for id, xyz, rgb, error, (start, end) in zip(*(c.tolist() for c in columns), spans, strict=True):
        track = " ".join(elements[start:end])
        rows.append(f"{id} {_joined(xyz)} {_joined([*rgb, error])} {track}".rstrip())
    return _file("POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[] as (IMAGE_ID, POINT2D_IDX)", rows)


def _joined(values: Iterable[float]) -> str:
    return " ".join(repr(value) for value in values)  # numbers that read back exactly


def _file(columns: str, rows: list[str]) -> bytes:
    return "".join(f"{row}\n" for row in [f"# {columns}", *rows]).encode()


# ---- lines and numbers -------------------------------------------------------------------------------------


def _all_lines(path: Path) -> Iterator[Line]:
    with open_sized(path) as (file, _):
        for number, raw in enumerate(file, start=1):
            yield Line(path, number, os.fsdecode(raw).strip())  # names are bytes, and need not be UTF-8


def _data_lines(path: Path) -> Iterator[Line]:
    return (line for line in _all_lines(path) if line.text and not line.text.startswith("#"))


def _whole(line: Line, word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 19):
        raise line.error(f"expected a whole number, found {word[:40]!r}")
    return int(word)


def _numbers(line: Line, text: str, count: int | None = None) -> NDArray[np.float64]:
    """Numbers of a line that may be as long as the file: no list of words in between (50 bytes each)."""
    try:
        values = np.fromstring(text, dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError) as error:
        raise line.error(f"is not a row of numbers: {text[:60]!r}") from error
    if count is not None and len(values) != count:
        raise line.error(f"expected {count} numbers, found {len(values)}")
    if not np.isfinite(values).all():
        raise line.error("has a value that is not finite")
    return values
