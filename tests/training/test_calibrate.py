"""Calibration: fitted to what is right, monotone, and written into the file alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_scenes import PlaneSource

from gbinet.errors import InputError
from gbinet.evaluation.reliability import reliability
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.model.geometry import is_right
from gbinet.render.validation import LIFE_SCENES, SCENES
from gbinet.training import calibrate as calibration
from gbinet.training.calibrate import MIN_CONFIDENCE, calibrate, fit, held_back, isotonic

# ---- what is right -----------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), off=st.floats(-0.05, 0.05))
def test_a_depth_is_right_if_its_median_reprojection_error_is_below_a_pixel(seed: int, off: float) -> None:
    batch = PlaneSource(views=4).sample(seed)
    depth = batch.depth * (1 + off)
    reference = batch.cameras[0][0]
    points = [reference.unproject(reference.pixel_grid(), d[0]) for d in (depth, batch.depth)]
    apart = []
    for view in range(1, 4):
        (one, _), (other, _) = (batch.cameras[0][view].project(p) for p in points)
        apart.append((one - other).square().sum(-1).sqrt())
    distance = torch.stack(apart).median(0).values
    clear = (distance - 1).abs() > 1e-2  # rounding decides the others
    assert torch.equal(is_right(depth, batch.depth, batch.cameras)[0][clear], (distance <= 1)[clear])


def test_the_truth_is_right_and_nothing_behind_a_source_is() -> None:
    batch = PlaneSource().sample(3)
    assert bool(is_right(batch.depth, batch.depth, batch.cameras).all())
    assert not bool(is_right(-batch.depth, batch.depth, batch.cameras).any())


# ---- the fit -----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0.1, 5)), min_size=1, max_size=40))
def test_isotonic_regression_gives_the_closest_non_decreasing_sequence(
    pairs: list[tuple[float, float]],
) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    found = isotonic(values, weights)
    assert (np.diff(found) >= 0).all()
    assert np.allclose(isotonic(found, weights), found)
    # Of a projection onto a cone: the rest is orthogonal to the result, and at an obtuse angle to the cone.
    rest = weights * (values - found)
    assert abs(rest @ found) < 1e-8
    assert (np.cumsum(rest[::-1]) < 1e-8).all() and abs(rest.sum()) < 1e-8


@pytest.mark.parametrize("power", [0.3, 1.0, 3.0])
def test_a_fitted_confidence_is_the_share_of_right_pixels(power: float) -> None:
    random = torch.Generator().manual_seed(0)
    said = torch.rand(200_000, generator=random) ** 2
    right = torch.rand(len(said), generator=random) < said**power
    half = len(said) // 2
    map_ = fit(said[:half], right[:half])
    after = reliability(map_(said[half:]), right[half:])
    assert after.error < 0.01
    assert abs(reliability(said[half:], right[half:]).error - after.error) > 0.05 or power == 1.0


def test_equal_confidences_are_mapped_to_their_share() -> None:
    right = torch.arange(100) < 30
    assert float(fit(torch.full((100,), 0.7), right)(torch.tensor(0.7))) == pytest.approx(0.3, abs=1e-6)
    assert float(fit(torch.ones(100), right)(torch.tensor(1.0))) == pytest.approx(0.3, abs=1e-6)
    with pytest.raises(InputError, match="pixels"):
        fit(torch.zeros(0), torch.zeros(0, dtype=torch.bool))


def test_a_weights_file_is_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = GBiNet(GBiNetConfig(encoder_width=4, regulariser_width=2, stages=3, confidence="nearby"))
    path = network.save(tmp_path / "a.safetensors", half=True)
    monkeypatch.setattr(calibration, "held_back", lambda *_: (PlaneSource().sample(i) for i in range(3)))
    seen: list[str] = []
    found = calibrate(path, progress=seen.append)
    loaded = GBiNet.from_pretrained(path)
    assert len(seen) == 3 and loaded.min_confidence == MIN_CONFIDENCE
    assert loaded.calibration is not None
    assert loaded.calibration.to_dict() == found.calibration.to_dict()
    assert found.after.error < 0.05 < found.before.error
    again = calibrate(path)  # not fitted on top of itself
    assert again.calibration.to_dict() == found.calibration.to_dict()


def test_held_back_scenes_are_others_at_every_size_and_none_is_measured_on() -> None:
    asked: list[tuple[int, ...]] = []

    def note(*given: object, first: int) -> list[object]:
        size, count = given[-3], given[-1]
        assert isinstance(size, tuple) and isinstance(count, int)
        asked.append((size[0], *range(first, first + count)))
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "validation_samples", note)
        patch.setattr(calibration, "life_samples", note)
        assert not list(held_back(scenes=2, sizes=(64, 80)))
    assert [size for size, *_ in asked] == [64, 64, 80, 80]
    small, small_life, large, large_life = (set(numbers) for _, *numbers in asked)
    assert len(small) == 10 and len(small_life) == 2
    assert small.isdisjoint(large) and small_life.isdisjoint(large_life)
    measured = set(range(max(SCENES, LIFE_SCENES)))
    assert measured.isdisjoint(small | small_life | large | large_life)


def test_only_safetensors_files_are_calibrated(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="safetensors"):
        calibrate(tmp_path / "published.ckpt")
    with pytest.raises(InputError, match="64 px"):
        calibrate(tmp_path / "a.safetensors", sizes=())
