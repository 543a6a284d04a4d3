"""EXIF: what is written is read back; whatever else is there says nothing and breaks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gbinet.errors import FormatError
from gbinet.formats.exif import Exif, _exif, read_exif


def save(path: Path, gps: dict[int, object] | None = None) -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112] = "Maker\0\0", "Model 5", 6
    exif.get_ifd(0x8769).update({0x920A: 5.8, 0xA405: 35, 0xA434: "Lens"})
    exif.get_ifd(0x8825).update(gps or {})
    Image.new("RGB", (8, 6)).save(path, exif=exif)


def test_camera_and_place_are_read(tmp_path: Path) -> None:
    place = {1: "N", 2: (46.0, 30.0, 36.0), 3: "W", 4: (91.0, 59.0, 0.0), 5: b"\x00", 6: 198.5}
    save(tmp_path / "a.jpg", place)
    found = read_exif(tmp_path / "a.jpg")
    assert (found.make, found.model, found.lens, found.orientation) == ("Maker", "Model 5", "Lens", 6)
    assert found.focal_mm == pytest.approx(5.8) and found.focal_35mm == 35
    assert found.gps == pytest.approx((46.51, -91.98333, 198.5), abs=1e-4)
    south = {**place, 1: "S", 3: "E", 5: b"\x01"}
    save(tmp_path / "b.jpg", south)
    assert read_exif(tmp_path / "b.jpg").gps == pytest.approx((-46.51, 91.98333, -198.5), abs=1e-4)


def test_photos_without_exif_have_empty_exif(tmp_path: Path) -> None:
    for name in ("a.png", "a.jpg", "a.webp", "a.bmp"):
        Image.new("RGB", (8, 6)).save(tmp_path / name)
        assert read_exif(tmp_path / name) == Exif()
    (tmp_path / "b.jpg").write_bytes(b"no photo")
    with pytest.raises(FormatError, match=r"b\.jpg"):
        read_exif(tmp_path / "b.jpg")


ANY = st.one_of(
    st.none(), st.text(max_size=4), st.binary(max_size=4), st.floats(), st.integers(),
    st.tuples(st.floats(), st.floats(), st.floats()), st.lists(st.integers(), max_size=4),
)  # fmt: skip
TAGS = st.dictionaries(
    st.sampled_from([1, 2, 3, 4, 5, 6, 0x010F, 0x0110, 0x0112, 0x920A, 0xA405, 0xA434]), ANY
)


@given(TAGS, TAGS, TAGS)
def test_any_values_are_survived(
    main: dict[int, object], detail: dict[int, object], gps: dict[int, object]
) -> None:
    found = _exif(main, detail, gps)
    assert found.orientation in range(1, 9)
    assert found.gps is None or (abs(found.gps[0]) <= 90 and abs(found.gps[1]) <= 180)
