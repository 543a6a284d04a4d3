"""Mutated files: every parser gives a result or a FormatError naming the file; none hangs or swells.

Short form here (some 100 files per format), long form with `-m slow` (2,000 per format).
"""

from __future__ import annotations

import io
import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from time_limit import time_limit

from gbinet.errors import FormatError
from gbinet.formats import colmap_binary, colmap_text
from gbinet.formats.image import image_size, read_image, read_mask
from gbinet.formats.mvsnet import read_cam, read_pairs
from gbinet.formats.nerfstudio import read_transforms
from gbinet.formats.rgbd import read_intrinsics, read_poses

SLACK = 256 * 1024  # Python's own objects; the file may cost four times its size on top
SECONDS = 5.0  # per file: hundreds of times what a valid one takes

POSE = [1.0, 0.0, 0.0, 0.0, 0.5, -1.25, 3.0]


# ---- valid files -------------------------------------------------------------------------------------------


def cameras_bin() -> bytes:
    records = [struct.pack("<IiQQ4d", i, 1, 640, 480, 500, 501, 320, 240) for i in range(40)]
    return struct.pack("<Q", 40) + b"".join(records)


def images_bin() -> bytes:
    parts = [struct.pack("<Q", 20)]
    for i in range(20):
        parts.append(struct.pack("<I7dI", i, *POSE, i) + f"{i:04d}.jpg".encode() + b"\0")
        parts.append(struct.pack("<Q", 30) + struct.pack("<ddq", 1.5, 2.5, i) * 30)
    return b"".join(parts)


def points_bin() -> bytes:
    record = struct.pack("<3d3BdQ", 1, 2, 3, 10, 20, 30, 0.5, 4) + struct.pack("<II", 1, 2) * 4
    return struct.pack("<Q", 50) + b"".join(struct.pack("<Q", i) + record for i in range(50))


def cameras_txt() -> bytes:
    return b"# c\n1 OPENCV 640 480 500 500 320 240 0.1 0.2 0.3 0.4\n" * 5


def images_txt() -> bytes:
    lines = ["# Image list"]
    for i in range(20):
        lines += [f"{i} {' '.join(map(str, POSE))} 1 a b {i}.jpg", "1.5 2.5 -1 3.25 4.125 7 " * 10]
    return "\n".join(lines).encode()


def points_txt() -> bytes:
    return "\n".join(f"{i} 1.5 -2.5 3.5 10 20 30 0.5 1 2 3 4" for i in range(60)).encode()


def cam_txt() -> bytes:
    return (
        b"extrinsic\n1 0 0 5\n0 1 0 6\n0 0 1 7\n0 0 0 1\n\n"
        b"intrinsic\n500 0 320\n0 500 240\n0 0 1\n\n425 2.5 192 933.8\n"
    )


def pair_txt() -> bytes:
    return ("40\n" + "".join(f"{i}\n3 1 5.5 2 4.25 3 0.125\n" for i in range(40))).encode()


def transforms_json() -> bytes:
    matrix = [[1, 0, 0, 0.5], [0, 1, 0, 0.25], [0, 0, 1, 3], [0, 0, 0, 1]]
    frames = [{"file_path": f"images/{i}.png", "transform_matrix": matrix, "k1": 0.1} for i in range(20)]
    top = {"camera_model": "OPENCV", "fl_x": 500.0, "w": 640, "h": 480, "frames": frames}
    return json.dumps(top).encode()


def poses_txt() -> bytes:
    return ("1 0 0 5 0 1 0 6 0 0 1 7 0 0 0 1\n" * 40).encode()


def picture(kind: str, **options: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind, exif=exif, **options)
        return buffer.getvalue()

    return make


def all_image_readers(path: Path) -> None:
    image_size(path)
    read_mask(path, image_size(path))
    read_image(path)


def every_lens(path: Path) -> None:
    for frame in read_transforms(path).frames:
        frame.lens((640, 480))


def with_observations(path: Path) -> None:
    reader = colmap_binary if path.suffix == ".bin" else colmap_text
    reader.read_images(path, observations=True)


PARSERS: dict[str, tuple[Callable[[], bytes], Callable[[Path], object]]] = {
    "cameras.bin": (cameras_bin, colmap_binary.read_cameras),
    "images.bin": (images_bin, with_observations),
    "points3D.bin": (points_bin, colmap_binary.read_points),
    "cameras.txt": (cameras_txt, colmap_text.read_cameras),
    "images.txt": (images_txt, with_observations),
    "points3D.txt": (points_txt, colmap_text.read_points),
    "00000000_cam.txt": (cam_txt, read_cam),
    "pair.txt": (pair_txt, read_pairs),
    "transforms.json": (transforms_json, every_lens),
    "K.txt": (lambda: b"500 0 320\n0 500 240\n0 0 1\n", read_intrinsics),
    "poses.txt": (poses_txt, read_poses),
    "a.jpg": (picture("JPEG"), all_image_readers),
    "a.png": (picture("PNG"), all_image_readers),
    "a.tif": (picture("TIFF", compression="tiff_lzw"), all_image_readers),
    "a.webp": (picture("WEBP"), all_image_readers),
    "a.bmp": (picture("BMP"), all_image_readers),
    "a.ppm": (picture("PPM"), all_image_readers),
}
PICTURES = (".jpg", ".png", ".tif", ".webp", ".bmp", ".ppm")

# ---- mutations ---------------------------------------------------------------------------------------------

HOSTILE_WORDS = (
    b"1e999",
    b"nan",
    b"-1",
    b"0",
    b"99999999999999999999",
    b"-inf",
    b"",
    b"x",
    b"\xff",
    b"\0",
    b"[" * 9,
)
HOSTILE_BYTES = (
    b"\xff" * 8,
    b"\0" * 8,
    struct.pack("<Q", 2**40),
    struct.pack("<d", np.inf),
    struct.pack("<q", -1),
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        if not result:
            break
        at = chance.randrange(len(result))
        kind = chance.randrange(7)
        if kind == 0:
            result[at] = chance.randrange(256)
        elif kind == 1:
            del result[at:]
        elif kind == 2:
            del result[at : at + chance.randrange(1, 40)]
        elif kind == 3:
            result[at:at] = result[chance.randrange(len(result)) :][: chance.randrange(1, 200)]
        elif kind == 4:
            result[at : at + 8] = chance.choice(HOSTILE_BYTES)
        elif kind == 5:
            words = bytes(result).split(b" ")
            words[chance.randrange(len(words))] = chance.choice(HOSTILE_WORDS)
            result = bytearray(b" ".join(words))
        else:
            result[at] ^= 1 << chance.randrange(8)
    return bytes(result)


def fuzz(name: str, folder: Path, count: int) -> int:
    """Number of files that were refused."""
    make, parse = PARSERS[name]
    valid = make()
    path = folder / name
    path.write_bytes(valid)
    parse(path)  # the original must be good, and caches are filled before memory is measured
    chance = random.Random(name)
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(count):
            data = mutated(valid, chance)
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                with time_limit(SECONDS):
                    parse(path)
            except FormatError as error:
                refused += 1
                assert error.path == path and str(path) in str(error)
                if path.suffix not in PICTURES and "must be an object" not in error.problem:
                    assert error.position, f"no position: {error}"
            peak = tracemalloc.get_traced_memory()[1] - before
            # Pictures may be compressed; their size is limited in pixels instead.
            assert path.suffix in PICTURES or peak <= 4 * len(data) + SLACK, (peak, len(data))
    finally:
        tracemalloc.stop()
    return refused


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow grumbles before it gives up
@pytest.mark.parametrize("name", PARSERS)
def test_mutated_files(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path, 100) > 10  # the mutations do break files


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("name", PARSERS)
def test_many_mutated_files(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path, 2000) > 200
