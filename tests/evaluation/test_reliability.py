"""Reliability: what confidence says against how often it is right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.evaluation.reliability import reliability


def test_a_confidence_that_means_what_it_says_has_no_error() -> None:
    random = torch.Generator().manual_seed(0)
    said = torch.rand(100_000, generator=random)
    assert reliability(said, torch.rand(len(said), generator=random) < said).error < 0.01


def test_overconfidence_is_the_error() -> None:
    found = reliability(torch.ones(4, 5), torch.arange(20).reshape(4, 5) < 5)
    assert found.error == pytest.approx(0.75)
    (only,) = found.bins
    assert (only.low, only.high, only.share, only.confidence, only.right) == (0.9, 1.0, 1.0, 1.0, 0.25)
    assert "0.750" in found.table()


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60))
def test_bins_hold_every_pixel_once(pixels: list[tuple[float, bool]]) -> None:
    said, right = torch.tensor([p for p, _ in pixels]), torch.tensor([r for _, r in pixels], dtype=torch.bool)
    found = reliability(said, right)
    assert sum(b.share for b in found.bins) == pytest.approx(1 if pixels else 0)
    assert 0 <= found.error <= 1
    overall = sum(b.share * b.right for b in found.bins)
    assert overall == pytest.approx(float(right.double().mean()) if pixels else 0)
    assert all(b.low - 1e-6 <= b.confidence <= b.high + 1e-6 for b in found.bins)


def test_as_many_answers_as_confidences() -> None:
    with pytest.raises(InputError, match="confidence"):
        reliability(torch.zeros(3), torch.zeros(4, dtype=torch.bool))
