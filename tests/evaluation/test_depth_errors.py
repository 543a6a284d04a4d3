"""Laws of the depth measures."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.evaluation.depth import away_from_edges, confidence_errors, depth_errors


def random_map(seed: int, low: float = 425, high: float = 935) -> torch.Tensor:
    return low + (high - low) * torch.rand(24, 32, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 1000))
def test_the_truth_is_perfect(seed: int):
    truth = random_map(seed)
    errors = depth_errors(truth, truth)
    assert set(errors.within.values()) == {1.0}
    assert errors.mean == errors.median == 0
    assert errors.answered == 1


@given(st.integers(0, 1000), st.floats(0.01, 5))
def test_shares_rise_with_the_threshold_and_say_what_they_say(seed: int, size: float):
    truth = random_map(seed)
    depth = truth + size * (random_map(seed + 1, -1, 1))
    shares = list(depth_errors(depth, truth, thresholds=(0.1, 0.5, 1, 2, 5.01)).within.values())
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    expected = float(((depth - truth).abs() <= 0.5).float().mean())
    assert shares[1] == pytest.approx(expected)


def test_missing_answers_count_as_wrong_and_unknown_truth_not_at_all():
    truth = torch.full((4, 4), 600.0)
    truth[0] = 0
    depth = truth.clone()
    depth[1] = 0
    depth[2, 0] = torch.nan
    errors = depth_errors(depth, truth)
    assert errors.pixels == 12
    assert errors.answered == pytest.approx(7 / 12)
    assert errors.within[4.0] == pytest.approx(7 / 12)
    assert errors.mean == 0


def test_maps_without_any_depth_have_no_errors_and_no_pixel_within_any():
    truth = torch.full((4, 4), 600.0)
    errors = depth_errors(torch.zeros(4, 4), truth)
    assert math.isnan(errors.mean) and math.isnan(errors.median)
    assert errors.answered == 0 and set(errors.within.values()) == {0.0}


def test_the_mask_chooses_pixels():
    truth = random_map(0)
    depth = truth + 3
    mask = torch.zeros_like(truth, dtype=torch.bool)
    mask[:, :5] = True
    depth[:, :5] = truth[:, :5]
    assert depth_errors(depth, truth, mask).within[0.125] == 1
    assert depth_errors(depth, truth, ~mask).within[2.0] == 0


def test_nothing_known_gives_zeros():
    errors = depth_errors(torch.ones(4, 4), torch.zeros(4, 4))
    assert errors.pixels == 0
    assert errors.within[4.0] == 0


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match="true depth"):
        depth_errors(torch.ones(4, 4), torch.ones(4, 5))


def test_edges_are_found_and_slanted_planes_are_none():
    y, x = torch.meshgrid(torch.arange(20.0), torch.arange(30.0), indexing="ij")
    plane = 500 + 8 * x - 5 * y
    assert away_from_edges(plane).all()
    step = torch.where(x < 15, plane, plane + 100)
    smooth = away_from_edges(step, radius=2)
    assert not smooth[:, 12:18].any()
    assert smooth[:, :12].all() and smooth[:, 18:].all()
    hole = plane.clone()
    hole[10, 10] = 0
    assert not away_from_edges(hole)[8:13, 8:13].any()


@given(st.integers(0, 200))
def test_confidence_that_knows_the_error_sorts_perfectly(seed: int):
    truth = random_map(seed)
    error = random_map(seed + 1, 0, 3)
    good = confidence_errors(truth + error, 1 - error / 3, truth)
    bad = confidence_errors(truth + error, error / 3, truth)
    assert good.ause == pytest.approx(0, abs=1e-4)
    assert bad.ause > 0.1
    assert good.within[1.0] == 1.0  # confidence above 0.8: errors below 0.6
    assert good.share == pytest.approx(bad.share, abs=0.15)
