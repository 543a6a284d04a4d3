"""K.txt and poses.txt of RGB-D folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gbinet.errors import FormatError
from gbinet.formats.rgbd import read_intrinsics, read_poses


def test_values_come_back_exactly(tmp_path: Path) -> None:
    K = np.array([[500.123456789, 0, 320.5], [0, 499.9, 240.25], [0, 0, 1]])
    np.savetxt(tmp_path / "K.txt", K, fmt="%.18e")
    assert np.array_equal(read_intrinsics(tmp_path / "K.txt"), K)
    np.savetxt(tmp_path / "K4.txt", np.pad(K, (0, 1)), fmt="%.18e")
    assert np.array_equal(read_intrinsics(tmp_path / "K4.txt"), K)
    poses = np.random.default_rng(0).normal(size=(5, 16))
    poses[3] = np.nan  # tracking lost: kept, so that lines still count images
    np.savetxt(tmp_path / "poses.txt", poses, fmt="%.18e")
    assert np.array_equal(read_poses(tmp_path / "poses.txt"), poses.reshape(5, 4, 4), equal_nan=True)


def test_broken_files_say_where(tmp_path: Path) -> None:
    path = tmp_path / "poses.txt"
    path.write_text("1 2 3\n")
    with pytest.raises(FormatError, match=r"poses\.txt, line 1: expected 16 numbers, found 3"):
        read_poses(path)
    path.write_text("\n" + " ".join(["0"] * 15) + " zero\n")
    with pytest.raises(FormatError, match="line 2"):
        read_poses(path)
    path.write_text("1 0 0\n0 1 0\n")
    with pytest.raises(FormatError, match="line 3"):
        read_intrinsics(path)
    path.write_text("1 0 0\n0 inf 0\n0 0 1")
    with pytest.raises(FormatError, match=r"line 2.*not finite"):
        read_intrinsics(path)
