"""Structure from motion says what came of it, and what to do where it went badly."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gbinet.scenes.sfm import colmap
from gbinet.scenes.sfm.outcome import CameraFacts, Outcome

GOOD = Outcome(
    points=5000,
    error=0.5,
    cameras=(CameraFacts("SIMPLE_RADIAL", 4000, 3000, 3200.0, 20, (3200.0, 2000.0, 1500.0, -0.1)),),
    compared="all",
    pairs=190,
    others=(),
    unsound=(),
    fixed_focal=False,
    seconds={"features": 10.0, "matching": 5.0, "mapping": 2.5},
)


def test_a_good_outcome_has_no_doubts_and_survives_json() -> None:
    assert GOOD.warnings(20, 20) == [] and GOOD.total_seconds == 17.5
    assert Outcome.from_dict(json.loads(json.dumps(GOOD.to_dict()))) == GOOD
    assert GOOD.facts()["focal lengths"] == "3200 px (20 photos)" and "190 pairs" in GOOD.facts()["compared"]


@pytest.mark.parametrize(
    ("bad", "placed", "said"),
    [
        (GOOD, 13, "only 13 of 29 photos"),
        (replace(GOOD, error=3.2), 29, "3.2 px off on average.*--camera per-photo"),
        (replace(GOOD, others=(("x.jpg", "y.jpg", "z.jpg"),)), 29, "3 photos form a part.*x.jpg"),
        (replace(GOOD, unsound=("q.jpg",)), 29, "an impossible lens: q.jpg.*--camera shared"),
        (replace(GOOD, fixed_focal=True), 29, "focal lengths could not be found"),
    ],
)
def test_each_failure_is_reported_with_what_to_do(bad: Outcome, placed: int, said: str) -> None:
    (text,) = bad.warnings(placed, 29)
    assert re.search(said, text, re.DOTALL)


@pytest.mark.parametrize(("focal", "absurd"), [(1e6, True), (10.0, True), (900.0, False), (40_000.0, False)])
def test_absurd_focal_lengths_are_known(focal: float, absurd: bool) -> None:
    assert replace(GOOD.cameras[0], focal=focal).is_impossible is absurd


class FakeModel:
    """As much of a pycolmap model as the choice between models looks at."""

    def __init__(self, focals: list[float]) -> None:
        self.cameras = {i: FakeCamera(focal) for i, focal in enumerate(focals)}
        self.images = {i: FakeImage(i, i) for i in range(len(focals))}

    def num_reg_images(self) -> int:
        return len(self.images)


@dataclass
class FakeCamera:
    focal: float
    width: int = 1000
    height: int = 800

    def mean_focal_length(self) -> float:
        return self.focal


@dataclass
class FakeImage:
    image_id: int
    camera_id: int
    has_pose: bool = True


@pytest.mark.parametrize(
    ("free", "fixed", "count", "drifted", "is_fixed"),
    [
        ([900.0] * 9, [], 10, False, False),  # good: not tried again
        ([1e6] * 8 + [900.0] * 2, [1200.0] * 9, 10, False, True),  # focal lengths ran away
        ([900.0] * 4, [1200.0] * 3, 10, False, False),  # fixed ones are not better
        ([], [1200.0] * 3, 10, False, True),
        ([900.0] * 10, [1200.0] * 9, 10, True, True),  # all look the same way: EXIF knows better
        ([900.0] * 10, [1200.0] * 5, 10, True, False),  # unless it loses photos
    ],
)
def test_focal_lengths_that_run_away_are_kept_fixed(
    free: list[float],
    fixed: list[float],
    count: int,
    drifted: bool,
    is_fixed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mapped(_: object, __: object, ___: object, ____: int, keep: bool, _____: object) -> list[FakeModel]:
        focals = fixed if keep else free
        return [FakeModel(focals)] if focals else []

    monkeypatch.setattr(colmap, "_map", mapped)
    monkeypatch.setattr(colmap, "_drifted", lambda *_: drifted)
    models, kept = colmap.find_models(None, Path(), Path(), count, None)
    assert kept is is_fixed and models[0].num_reg_images() == len(fixed if is_fixed else free)


@pytest.mark.parametrize(
    ("turn", "focal", "drifted"), [(2.0, 1100.0, True), (2.0, 905.0, False), (40.0, 1100.0, False)]
)
def test_only_photos_that_look_the_same_way_let_a_focal_length_drift(
    turn: float, focal: float, drifted: bool
) -> None:
    def lens(value: float) -> SimpleNamespace:
        return SimpleNamespace(camera_id=1, has_prior_focal_length=True, mean_focal_length=lambda: value)

    def image(degrees: float) -> SimpleNamespace:
        a = np.radians(degrees)
        rotation = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
        pose = SimpleNamespace(rotation=SimpleNamespace(matrix=lambda: rotation))
        return SimpleNamespace(has_pose=True, cam_from_world=lambda: pose)

    database = SimpleNamespace(read_all_cameras=lambda: [lens(900.0)])
    pycolmap = SimpleNamespace(Database=SimpleNamespace(open=lambda _: nullcontext(database)))
    model = SimpleNamespace(images={i: image(turn * i) for i in range(4)}, cameras={1: lens(focal)})
    assert colmap._drifted(pycolmap, Path(), model) is drifted
