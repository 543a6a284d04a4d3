"""HEIC and camera raw: read where their readers are installed, named with what to install where not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gbinet.errors import FormatError, GBiNetError, InputError
from gbinet.formats.image import image_size, is_image_name, read_image, write_image
from gbinet.scenes.sfm.cameras import input_photo


def picture() -> np.ndarray:
    y, x = np.mgrid[:48, :64]
    return np.stack([4 * x, 5 * y, 255 - 4 * x], -1).clip(0, 255).astype(np.uint8)


def test_heic_is_read(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "IMG_1.HEIC"
    heif.from_pillow(Image.fromarray(picture())).save(str(path), quality=95)
    assert is_image_name(path) and image_size(path) == (64, 48)
    assert np.abs(read_image(path).astype(int) - picture()).mean() < 6
    assert input_photo(path, "IMG_1.HEIC.jpg").rewritten
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FormatError, match=r"IMG_1\.HEIC"):
        read_image(path)


def test_broken_raw_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("rawpy")
    path = tmp_path / "a.dng"
    path.write_bytes(b"no raw file" * 50)
    with pytest.raises(FormatError, match=r"a\.dng"):
        read_image(path)


@pytest.mark.parametrize(("name", "module"), [("a.heic", "pillow_heif"), ("a.nef", "rawpy")])
def test_a_missing_reader_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    (tmp_path / name).write_bytes(b"something")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(GBiNetError, match=rf"{module}: pip install 'gbinet\[photos\]'"):
        read_image(tmp_path / name)


def test_they_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a kind of image"):
        write_image(tmp_path / "a.heic", picture())
