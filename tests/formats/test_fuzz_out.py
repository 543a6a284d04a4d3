"""Broken files: every reader gives a result or a FormatError that names the file. Nothing else, and no bombs.

The short form runs with the other tests; the long form, 3,000 files per format, with `make test-slow`.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from exact_plane import WIDTH, look_at, plane_depth

from gbinet.camera import Camera
from gbinet.errors import FormatError
from gbinet.formats.colmap_array import read_colmap_array, write_colmap_array
from gbinet.formats.depth_files import read_confidence, read_depth, write_depth
from gbinet.formats.openmvs import read_dmap, write_dmap
from gbinet.formats.pfm import read_pfm, write_pfm
from gbinet.formats.ply import read_ply, write_ply
from gbinet.pointcloud import PointCloud

SHORT, LONG = 200, 3000
ALLOWANCE = 300_000  # Python objects need some memory whatever the file's size


def small_depth() -> np.ndarray:
    return np.linspace(1, 5, 12 * 17, dtype=np.float32).reshape(12, 17)


def seed_cloud(path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    rgb = torch.randint(0, 256, (20, 3), generator=g, dtype=torch.uint8)
    write_ply(path, PointCloud(torch.randn(20, 3, generator=g), rgb, torch.randn(20, 3, generator=g)))


def seed_text_cloud(path: Path) -> None:
    rows = "".join(f"{i} {i * 0.5} -{i}e-2 {i} 2 3\n" for i in range(20))
    names = "".join(
        f"property {p}\n"
        for p in ["float x", "float y", "double z", "uchar red", "uchar green", "uchar blue"]
    )
    faces = "element face 2\nproperty list uchar int vertex_indices\n"
    path.write_text(
        f"ply\nformat ascii 1.0\n{faces}element vertex 20\n{names}end_header\n3 0 1 2\n3 1 2 3\n{rows}"
    )


def seed_list_cloud(path: Path) -> None:
    header = (
        "ply\nformat binary_big_endian 1.0\nelement face 3\nproperty list uchar int vertex_indices\n"
        "element vertex 9\nproperty float x\nproperty float y\nproperty float z\n"
        "property list ushort uint view_indices\nend_header\n"
    )
    faces = b"".join(b"\x03" + np.arange(3, dtype=">i4").tobytes() for _ in range(3))
    vertex = b"".join(
        np.array([i, 2, 3], ">f4").tobytes() + np.array([i % 3], ">u2").tobytes() + bytes(4 * (i % 3))
        for i in range(9)
    )
    path.write_bytes(header.encode() + faces + vertex)


def seed_dmap(path: Path) -> None:
    K = torch.tensor([[90.0, 0, 9], [0, 91, 7], [0, 0, 1]], dtype=torch.float64)
    depth_map = plane_depth(Camera(K, look_at([0.1, 0.0, 0.0]), 18, 14))
    write_dmap(path, depth_map, (18, 14), "images/a.jpg", [0, 1, 2])


def read_npz(path: Path) -> object:
    return read_depth(path), read_confidence(path)


# Format -> (file name, how a good one is written, how it is read, what a stored byte can become in memory).
# Deflate may grow data 1000-fold, in good files too: for those formats the limit is what the file could hold.
FORMATS: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object], int]] = {
    "ply": ("a.ply", seed_cloud, read_ply, 4),
    "ply-text": ("a.ply", seed_text_cloud, read_ply, 4),
    "ply-lists": ("a.ply", seed_list_cloud, read_ply, 4),
    "pfm": ("a.pfm", lambda p: write_pfm(p, small_depth()), read_pfm, 4),
    "colmap-map": ("a.bin", lambda p: write_colmap_array(p, small_depth()), read_colmap_array, 4),
    "dmap": ("a.dmap", seed_dmap, read_dmap, 4),
    "npy": ("a.npy", lambda p: write_depth(p, small_depth()), read_depth, 4),
    "npz": ("a.npz", lambda p: write_depth(p, small_depth(), small_depth() / 10), read_npz, 4),
    "png": ("a.png", lambda p: write_depth(p, small_depth() * 1000), read_depth, 1100),
    "tiff": ("a.tif", lambda p: write_depth(p, small_depth()), read_depth, 4),
}


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut, flip bits, overwrite, insert, repeat; numbers in text headers become absurd."""
    result = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        # Headers are short: half of the changes go there.
        end = max(1, len(result))
        at = int(rng.integers(0, min(end, 200) if rng.random() < 0.5 else end))
        match int(rng.integers(0, 7)):
            case 0:
                del result[at:]
            case 1 if at < len(result):
                result[at] ^= 1 << int(rng.integers(0, 8))
            case 2:
                result[at : at + 4] = rng.choice(
                    [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\x80\x7f"]
                )
            case 3:
                result[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 4:
                del result[at : at + int(rng.integers(1, 9))]
            case 5:
                numbers = list(re.finditer(rb"\d+", bytes(result[:400])))
                if numbers:
                    where = numbers[int(rng.integers(0, len(numbers)))]
                    absurd = [
                        b"0",
                        b"-1",
                        b"1",
                        b"999999999",
                        b"99999999999999999999",
                        b"1e9",
                        b"nan",
                        b"\xff",
                    ]
                    result[where.start() : where.end()] = absurd[int(rng.integers(0, len(absurd)))]
            case _:
                result[at:at] = result[at : at + int(rng.integers(1, 200))]
    return bytes(result)


def fuzz(folder: Path, name: str, count: int) -> int:
    """Read `count` mutated files; returns how many were still readable."""
    file_name, write, read, growth = FORMATS[name]
    path = folder / file_name
    write(path)
    good = path.read_bytes()
    read(path)
    path.write_bytes(b"warm up")
    with pytest.raises(FormatError):  # what is imported on the first failure is not what is measured
        read(path)
    readable = 0
    for number in range(count):
        data = mutated(good, np.random.default_rng([number, len(name)]))
        path.write_bytes(data)
        tracemalloc.start()
        try:
            read(path)
            readable += 1
        except FormatError as error:
            assert error.path == path and error.position and file_name in str(error), f"file {number}"
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak <= growth * len(data) + ALLOWANCE, f"file {number}: {peak} bytes for {len(data)}"
    return readable


@pytest.mark.parametrize("name", FORMATS)
def test_broken_files_short(tmp_path, name):
    fuzz(tmp_path, name, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_broken_files_long(tmp_path, name):
    readable = fuzz(tmp_path, name, LONG)
    assert 0 < readable < LONG  # the changes neither always nor never break the file


def test_memory_of_large_files_is_bounded(tmp_path):
    """The 4-fold limit where the file, not Python itself, is what counts."""
    depth = np.random.default_rng(0).random((700, 9 * WIDTH), np.float32)
    cloud = PointCloud(torch.rand(200_000, 3), torch.zeros(200_000, 3, dtype=torch.uint8))
    write_ply(tmp_path / "a.ply", cloud)
    for suffix in (".pfm", ".bin", ".npy", ".npz"):
        write_depth(tmp_path / f"a{suffix}", depth)
    for path in sorted(tmp_path.iterdir()):
        tracemalloc.start()
        read_ply(path) if path.suffix == ".ply" else read_depth(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= 4 * path.stat().st_size, path.name
