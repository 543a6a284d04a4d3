"""Structure from motion says what came of it, and what to do where it went badly."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from gbinet.sfm.outcome import CameraFacts, Outcome

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
        (replace(GOOD, unsound=("q.jpg",)), 29, "no real lens: q.jpg.*--camera shared"),
        (replace(GOOD, fixed_focal=True), 29, "focal lengths could not be found"),
    ],
)
def test_each_way_to_fail_is_said_with_what_to_do(bad: Outcome, placed: int, said: str) -> None:
    (text,) = bad.doubts(placed, 29)
    assert re.search(said, text, re.DOTALL)


@pytest.mark.parametrize(("focal", "absurd"), [(1e6, True), (10.0, True), (900.0, False), (40_000.0, False)])
def test_absurd_focal_lengths_are_known(focal: float, absurd: bool) -> None:
    assert replace(GOOD.cameras[0], focal=focal).absurd is absurd
