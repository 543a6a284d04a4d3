"""Depth maps as OpenEXR, the exchange format of film and games: one channel `Z` of float32 (extra `exr`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gbinet.errors import FormatError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.limits import check_unpacked
from gbinet.formats.optional import optional
from gbinet.formats.reading import regular_size

Array = np.ndarray[Any, Any]

# Names of the channel that holds depth, the usual one first. A layer may stand before it: `Depth.Z`.
_CHANNELS = ("Z", "V", "Y", "R")


def _openexr(path: Path) -> Any:
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise FormatError(path, "OpenEXR takes only names in UTF-8; rename it or its folder") from error
    return optional("OpenEXR", f"{path.name}: EXR", "exr")


def write_exr(path: str | Path, values: Array) -> Path:
    """Write float32 [H, W]."""
    path = Path(path)
    openexr = _openexr(path)
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    with atomic_path(path) as temporary:
        openexr.File(header, {"Z": np.ascontiguousarray(values, np.float32)}).write(str(temporary))
    return path


def read_exr(path: str | Path) -> Array:
    """The channel that holds depth, [H, W]."""
    path = Path(path)
    openexr = _openexr(path)
    regular_size(path)
    try:
        header = openexr.File(str(path), header_only=True).header()
        low, high = header["dataWindow"]
        width, height = (max(0, int(b) - int(a) + 1) for a, b in zip(low, high, strict=True))
        check_unpacked(path, width * height * 4 * len(header["channels"]), f"its {width}x{height} pixels")
        channels = openexr.File(str(path), separate_channels=True).channels()
    except FormatError:
        raise
    except Exception as error:  # decoders raise nearly anything on broken files
        raise FormatError(path, f"is not a readable EXR file ({error})", "header") from error
    name = _depth_channel(list(channels))
    if name is None:
        listed = ", ".join(channels)
        raise FormatError(path, f"has no channel for depth among {listed}; expected Z", "header")
    return np.asarray(channels[name].pixels).astype(np.float32)


def _depth_channel(names: list[str]) -> str | None:
    for wanted in _CHANNELS:
        for name in names:
            if name.rpartition(".")[2].upper() == wanted:
                return name
    return names[0] if len(names) == 1 else None
