"""PFM: float images with rows from bottom to top, in either byte order."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import atomic_file
from gbinet.formats.reading import open_sized

Array = np.ndarray[Any, Any]

# "Pf" or "PF", width, height, scale: parted by any white space, data after exactly one line end.
_HEADER = re.compile(rb"(P[fF])\s+(\d{1,9})\s+(\d{1,9})\s+([-+.0-9eE]{1,30})(?:\r\n|\s)")


def read_pfm(path: str | Path) -> Array:
    """A PFM file -> float32 [H, W] or [H, W, 3]. The size of the header's scale is not applied."""
    path = Path(path)
    with open_sized(path) as (file, size):
        match = _HEADER.match(file.read(256))
        if match is None:
            raise FormatError(path, "not a PFM file: no header 'Pf width height scale'", "byte 0")
        magic, width, height = match[1], int(match[2]), int(match[3])
        channels = 3 if magic == b"PF" else 1
        order = _byte_order(path, match[4])
        needed = width * height * channels * 4
        if width == 0 or height == 0:
            raise FormatError(path, f"the image is empty: {width}x{height}", f"byte {match.start(2)}")
        if needed > size - match.end():
            raise FormatError(
                path,
                f"cut short: {width}x{height}x{channels} floats need {needed} bytes, "
                f"{size - match.end()} follow the header",
                f"byte {size}",
            )
        file.seek(match.end())
        flat = np.fromfile(file, dtype=f"{order}f4", count=width * height * channels)
    shape = (height, width, 3) if channels == 3 else (height, width)
    return np.ascontiguousarray(flat.reshape(shape)[::-1]).astype(np.float32, copy=False)


def _byte_order(path: Path, text: bytes) -> str:
    """The scale's sign tells the byte order."""
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not math.isfinite(scale) or scale == 0:
        raise FormatError(path, f"the scale '{text.decode()}' is not a number other than 0", "header")
    return "<" if scale < 0 else ">"


def write_pfm(path: str | Path, values: Array, big_endian: bool = False) -> Path:
    """Write [H, W] or [H, W, 3] as float32."""
    path = Path(path)
    if not (values.ndim == 2 or (values.ndim == 3 and values.shape[2] == 3)) or values.size == 0:
        raise InputError(f"{path}: PFM holds [H, W] or [H, W, 3], got {list(values.shape)}")
    magic = "PF" if values.ndim == 3 else "Pf"
    height, width = values.shape[:2]
    data = np.ascontiguousarray(values[::-1], dtype=">f4" if big_endian else "<f4")
    with atomic_file(path) as file:
        file.write(f"{magic}\n{width} {height}\n{'1.0' if big_endian else '-1.0'}\n".encode())
        file.write(data.data)
    return path
