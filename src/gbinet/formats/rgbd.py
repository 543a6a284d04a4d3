"""The two text files of an RGB-D folder, read: `K.txt` (3x3) and `poses.txt` (16 numbers per line)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError
from gbinet.formats.textfile import lines_of

_MAX_BYTES = 64 * 1024 * 1024


def read_intrinsics(path: Path) -> NDArray[np.float64]:  # [3, 3]
    lines = lines_of(path, 64 * 1024)
    if len(lines) < 3:
        raise FormatError(path, "expected 3 lines of 3 numbers", f"line {len(lines) + 1}")
    # ScanNet and others write 4x4: the upper left 3x3 counts.
    width = 4 if len(lines[0].text.split()) == 4 else 3
    return np.stack([line.floats(width)[:3] for line in lines[:3]])


def read_poses(path: Path) -> NDArray[np.float64]:  # [V, 4, 4] world_from_cam
    """One camera-to-world matrix per line, row-major. A lost pose (nan, inf) is returned as it is."""
    lines = lines_of(path, _MAX_BYTES)
    poses = np.empty((len(lines), 4, 4))
    for row, line in enumerate(lines):
        poses[row] = line.floats(16, finite=False).reshape(4, 4)
    return poses
