"""Images of every kind come out as upright RGB; broken ones as FormatError."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from gbinet.errors import FormatError
from gbinet.formats.image import image_size, read_header, read_image, read_mask, write_image

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (7, 5, 3), dtype=np.uint8)


def saved(folder: Path, image: Image.Image, name: str = "a.png", **options: object) -> Path:
    path = folder / name
    image.save(path, **options)  # type: ignore[arg-type]
    return path


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    suffix=st.sampled_from([".png", ".tif", ".bmp", ".ppm"]),
    seed=st.integers(0, 9),
)
def test_lossless_formats_round_trip(
    tmp_path_factory: pytest.TempPathFactory, height: int, width: int, suffix: str, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    path = write_image(tmp_path_factory.mktemp("i") / f"a{suffix}", pixels)
    assert np.array_equal(read_image(path), pixels)
    assert image_size(path) == (width, height)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "a.webp"])
def test_orientation_agrees_with_pillow(tmp_path: Path, orientation: int, name: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, object] = {"lossless": True} if name.endswith("webp") else {}
    path = saved(tmp_path, Image.fromarray(RGB), name, exif=exif, **options)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(read_image(path), expected)
    assert image_size(path) == (expected.shape[1], expected.shape[0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_stored_pixels_ignore_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(RGB), exif=exif)
    assert np.array_equal(read_image(path, stored=True), RGB)
    assert read_header(path).stored_size == (5, 7)
    assert read_header(path).orientation == orientation


def test_grey_and_16_bit_and_palette(tmp_path: Path) -> None:
    grey = RGB[..., 0]
    assert np.array_equal(read_image(saved(tmp_path, Image.fromarray(grey))), grey[..., None].repeat(3, -1))
    wide = grey.astype(np.uint16) * 257
    assert np.array_equal(read_image(write_image(tmp_path / "w.png", wide))[..., 0], grey)
    palette = Image.fromarray(RGB).quantize(8)
    assert np.array_equal(read_image(saved(tmp_path, palette)), np.asarray(palette.convert("RGB")))
    bilevel = Image.fromarray(grey > 100)
    assert set(np.unique(read_image(saved(tmp_path, bilevel)))) == {0, 255}


def test_16_bit_colour_keeps_its_high_byte(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in RGB)
    path = tmp_path / "deep.png"
    path.write_bytes(_png(5, 7, 16, 2, rows))
    assert np.array_equal(read_image(path), RGB)


def test_alpha_is_over_black_and_serves_as_mask(tmp_path: Path) -> None:
    alpha = np.full((7, 5, 1), 255, np.uint8)
    alpha[:3] = 0
    path = saved(tmp_path, Image.fromarray(np.concatenate([RGB, alpha], -1)))
    assert read_header(path).has_alpha
    pixels = read_image(path)
    assert (pixels[:3] == 0).all() and np.array_equal(pixels[3:], RGB[3:])
    assert np.array_equal(read_mask(path, (5, 7)), alpha[..., 0] > 0)


def test_masks(tmp_path: Path) -> None:
    keep = RNG.random((6, 8)) > 0.5
    assert np.array_equal(read_mask(write_image(tmp_path / "m.png", keep), (8, 6)), keep)
    # 0 is ignored and everything else counts, in whatever range.
    assert np.array_equal(read_mask(write_image(tmp_path / "n.png", keep.astype(np.uint8)), (8, 6)), keep)
    larger = read_mask(tmp_path / "m.png", (16, 12))
    assert np.array_equal(larger, keep.repeat(2, 0).repeat(2, 1))
    with pytest.raises(FormatError, match="different crops"):
        read_mask(tmp_path / "m.png", (80, 20))
    half = Image.fromarray(np.pad(np.full((16, 8), 255, np.uint8), ((0, 0), (0, 8))))
    lossy = read_mask(saved(tmp_path, half, "m.jpg", quality=30), (16, 16))
    assert lossy[:, :7].all() and not lossy[:, 9:].any()


def _png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_a_small_file_that_claims_a_huge_picture_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(_png(60_000, 60_000, 8, 2, b""))
    for read in (read_image, image_size):
        with pytest.raises(FormatError, match=r"bomb\.png"):
            read(path)


def test_an_unpacked_picture_larger_than_its_file_is_refused_unread(tmp_path: Path) -> None:
    """A TIFF without compression whose header claims ten thousand rows more than it holds."""
    path = saved(tmp_path, Image.fromarray(RGB), "a.tif")
    data = bytearray(path.read_bytes())
    height = struct.pack("<HHI", 257, 4, 1)  # tag ImageLength, 32 bits, one value
    at = data.find(height)
    assert at > 0
    data[at + 8 : at + 12] = struct.pack("<I", 10_000)
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="claims 5x10000 pixels in a file of"):
        read_image(path)


def test_broken_files(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(RGB.repeat(20, 0).repeat(20, 1)).save(buffer, "JPEG")
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    assert image_size(cut) == (100, 140)  # the header is still good
    with pytest.raises(FormatError, match=r"cut\.jpg.*cut short"):
        read_image(cut)
    for name, data in {"empty.png": b"", "text.jpg": b"hello", "folder": None}.items():
        path = tmp_path / name
        path.mkdir() if data is None else path.write_bytes(data)
        with pytest.raises(FormatError, match=name):
            read_image(path)
    with pytest.raises(FormatError, match="no such file"):
        read_image(tmp_path / "absent.png")
    floats = saved(tmp_path, Image.fromarray(np.zeros((3, 3), np.float32)), "f.tif")
    with pytest.raises(FormatError, match="floating-point"):
        read_image(floats)
