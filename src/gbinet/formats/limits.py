"""How much a file may unpack to, checked beforehand: a few kilobytes can hold gigabytes of zeros."""

from __future__ import annotations

import os
from pathlib import Path

from gbinet.errors import FormatError, InputError

VARIABLE = "GBINET_MAX_UNPACKED_GIB"
DEFAULT_GIB = 1.0  # a photo of 268 megapixels
PIXEL_BYTES = 4  # of a decoded photo in memory


def max_unpacked() -> int:
    """Bytes that one image, or one array of an archive, may take: DEFAULT_GIB, or as VARIABLE says."""
    text = os.environ.get(VARIABLE, "").strip()
    try:
        gib = float(text) if text else DEFAULT_GIB
    except ValueError:
        gib = -1.0
    if not 0 < gib < 1e6:
        raise InputError(f"{VARIABLE}={text[:40]}: is not a number of GiB; give e.g. {VARIABLE}=8")
    return int(gib * 2**30)


def max_pixels() -> int:
    return max_unpacked() // PIXEL_BYTES


def check_unpacked(path: Path, size: int, what: str) -> None:
    """Raise a FormatError if the `size` bytes that a file would unpack to are too many."""
    limit = max_unpacked()
    if size > limit:
        raise FormatError(
            path,
            f"{what} would unpack to {size / 2**30:.3g} GiB, at most {limit / 2**30:.3g} GiB are read; "
            f"if you trust the file, set the environment variable {VARIABLE}={-(-size // 2**30)}",
            "header",
        )
