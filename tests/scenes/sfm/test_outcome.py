"""Structure from motion says what came of it, and what to do where it went badly."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

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
    assert GOOD.doubts(20, 20) == [] and GOOD.total_seconds == 17.5
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
def test_each_way_to_fail_is_said_with_what_to_do(bad: Outcome, placed: int, said: str) -> None:
    (text,) = bad.doubts(placed, 29)
    assert re.search(said, text, re.DOTALL)


@pytest.mark.parametrize(("focal", "absurd"), [(1e6, True), (10.0, True), (900.0, False), (40_000.0, False)])
def test_absurd_focal_lengths_are_known(focal: float, absurd: bool) -> None:
    assert replace(GOOD.cameras[0], focal=focal).absurd is absurd


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
    ("free", "fixed", "count", "is_fixed"),
    [
        ([900.0] * 9, [], 10, False),  # good: not tried again
        ([1e6] * 8 + [900.0] * 2, [1200.0] * 9, 10, True),  # focal lengths ran away
        ([900.0] * 4, [1200.0] * 3, 10, False),  # fixed ones are not better
        ([], [1200.0] * 3, 10, True),
    ],
)
def test_focal_lengths_that_run_away_are_kept_fixed(
    free: list[float], fixed: list[float], count: int, is_fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mapped(_: object, __: object, ___: object, ____: int, keep: bool, _____: object) -> list[FakeModel]:
        focals = fixed if keep else free
        return [FakeModel(focals)] if focals else []

    monkeypatch.setattr(colmap, "_map", mapped)
    models, kept = colmap.find_models(None, Path(), Path(), count, None)
    assert kept is is_fixed and models[0].num_reg_images() == len(fixed if is_fixed else free)
