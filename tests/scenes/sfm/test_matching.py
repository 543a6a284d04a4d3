"""Which photos are compared: laws of the pairs, and when each way is chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbinet.formats.exif import Exif
from gbinet.scenes.sfm.cameras import InputPhoto
from gbinet.scenes.sfm.matching import (
    all_pairs,
    is_sequence,
    pairs_by_looks,
    pairs_in_sequence,
    pairs_in_space,
    plan,
    positions,
)


def photos(places: list[tuple[float, float, float] | None], stem: str = "img") -> list[InputPhoto]:
    return [
        InputPhoto(Path(), f"{stem}{i * 7 % 1000}.jpg", (4, 3), Exif(gps=place))
        for i, place in enumerate(places)
    ]


def grid(rows: int, columns: int, metres: float = 10.0) -> list[tuple[float, float, float] | None]:
    """Places on a lawn-mower flight."""
    step = metres / 111_195
    return [
        (46.8 + row * step, -92.0 + column * step / 0.6845, 200.0)
        for row in range(rows)
        for column in range(columns)
    ]


@given(st.integers(2, 60))
def test_every_pair_is_there_once(count: int) -> None:
    pairs = all_pairs(count)
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2 and all(a < b for a, b in pairs)


def test_neighbours_in_space_are_compared_and_far_ones_are_not() -> None:
    flight = photos(grid(12, 12))
    pairs = set(pairs_in_space(flight))
    assert all(a < b for a, b in pairs) and len(pairs) < len(all_pairs(144)) / 2
    for index in range(144):
        row, column = divmod(index, 12)
        if row < 11:
            assert (index, index + 12) in pairs
        if column < 11:
            assert (index, index + 1) in pairs
    assert (0, 143) not in pairs


def test_a_photo_without_a_place_is_compared_with_all() -> None:
    flight = photos([*grid(8, 8), None])
    pairs = pairs_in_space(flight)
    assert {a for a, b in pairs if b == 64} == set(range(64))


@given(st.floats(-80, 80), st.floats(-179.9, 179.9))
def test_positions_are_in_metres_across_the_date_line_too(latitude: float, longitude: float) -> None:
    east = (longitude + 0.001 + 180) % 360 - 180
    place = positions(
        photos([(latitude, longitude, 0), (latitude, east, 0), (latitude + 0.001, longitude, 0), None])
    )
    assert place[1, 0] == pytest.approx(111.195 * np.cos(np.radians(latitude)), rel=1e-3)
    assert place[2, 1] == pytest.approx(111.195, rel=1e-3) and np.isnan(place[3]).all()


def test_what_is_known_decides() -> None:
    nowhere: list[tuple[float, float, float] | None] = [None]
    assert plan(photos(grid(3, 6))) == "all"
    assert plan(photos(grid(9, 9))) == "space"
    assert plan(photos(grid(9, 9, metres=0.01))) == "all"  # all in one place: GPS indoors
    assert plan(photos(nowhere * 90)) == "all"
    frames = [InputPhoto(Path(), f"frame_{i:05d}.png", (4, 3), Exif()) for i in range(0, 900, 3)]
    assert plan(frames) == "sequence"
    assert plan([InputPhoto(Path(), f"{i**3}x.png", (4, 3), Exif()) for i in range(300)]) == "looks"


def test_numbers_that_run_on_are_a_sequence() -> None:
    assert is_sequence([f"f{i:03d}.jpg" for i in range(0, 300, 5)])
    assert is_sequence([f"DSC_{i}.JPG" for i in [*range(990, 1040), *range(1050, 1100)]])  # 9 to 10 digits
    assert not is_sequence(["a.jpg", "b.jpg"]) and not is_sequence(
        [f"{'ab'[i % 2]}{i}.jpg" for i in range(9)]
    )


def test_frames_are_compared_with_those_that_follow_by_number() -> None:
    names = [f"f{i}.jpg" for i in range(100)]  # f10 sorts before f2
    pairs = set(pairs_in_sequence(names))
    assert all((i, i + step) in pairs for i in range(80) for step in (1, 2, 10, 16))
    assert (0, 15) not in pairs and len(pairs) < 20 * len(names)


def test_photos_that_look_alike_are_found(tmp_path: Path) -> None:
    """Two groups of photos with features of their own: partners come from the own group."""
    pycolmap = pytest.importorskip("pycolmap")
    random = np.random.default_rng(0)
    database = tmp_path / "database.db"
    kinds = random.integers(0, 256, (2, 400, 128))
    with pycolmap.Database.open(database) as opened:
        camera = pycolmap.Camera.create_from_model_name(1, "SIMPLE_PINHOLE", 50.0, 64, 48)
        opened.write_camera(camera)
        for number in range(12):
            image_id = opened.write_image(pycolmap.Image(name=f"{number:06d}.jpg", camera_id=1))
            values = (kinds[number % 2] + random.integers(-9, 10, (400, 128))).clip(0, 255).astype(np.uint8)
            opened.write_keypoints(image_id, random.uniform(0, 48, (400, 2)).astype(np.float32))
            kind = pycolmap.FeatureExtractorType.SIFT
            opened.write_descriptors(image_id, pycolmap.FeatureDescriptors(kind, values))
    pairs = pairs_by_looks(pycolmap, database, tmp_path, 5)
    assert len(pairs) >= 12 and np.mean([(b - a) % 2 == 0 for a, b in pairs]) > 0.8
    assert pairs == pairs_by_looks(pycolmap, database, tmp_path, 5) and not (tmp_path / "words.bin").exists()
