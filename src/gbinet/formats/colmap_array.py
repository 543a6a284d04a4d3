"""COLMAP's dense maps (`*.photometric.bin`, `*.geometric.bin`): text header `W&H&C&`, then float32 planes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import atomic_file
from gbinet.formats.reading import open_sized

Array = np.ndarray[Any, Any]

_HEADER = re.compile(rb"(\d{1,9})&(\d{1,9})&(\d{1,9})&")


def read_colmap_array(path: str | Path) -> Array:
    """-> float32 [H, W] (depth) or [H, W, C] (normals)."""
    path = Path(path)
    with open_sized(path) as (file, size):
        match = _HEADER.match(file.read(64))
        if match is None:
            raise FormatError(path, "not a COLMAP depth or normal map: no header 'W&H&C&'", "byte 0")
        width, height, channels = (int(text) for text in match.groups())
        count = width * height * channels
        if count == 0:
            raise FormatError(path, f"the map is empty: {width}x{height}x{channels}", "byte 0")
        if count * 4 > size - match.end():
            raise FormatError(
                path,
                f"cut short: {width}x{height}x{channels} floats need {count * 4} bytes, "
                f"{size - match.end()} follow the header",
                f"byte {size}",
            )
        file.seek(match.end())
        planes = np.fromfile(file, dtype="<f4", count=count).reshape(channels, height, width)
    planes = planes.astype(np.float32, copy=False)
    return planes[0] if channels == 1 else np.ascontiguousarray(planes.transpose(1, 2, 0))


def write_colmap_array(path: str | Path, values: Array) -> Path:
    """Write [H, W] or [H, W, C] as float32."""
    path = Path(path)
    if values.ndim not in (2, 3) or values.size == 0:
        raise InputError(f"{path}: a COLMAP map is [H, W] or [H, W, C], got {list(values.shape)}")
    planes = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)  # [C, H, W]
    channels, height, width = planes.shape
    with atomic_file(path) as file:
        file.write(f"{width}&{height}&{channels}&".encode())
        file.write(np.ascontiguousarray(planes, dtype="<f4").data)
    return path
