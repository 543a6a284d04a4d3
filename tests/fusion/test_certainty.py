"""Points are kept by the probability that all views together give them, where confidence is one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import InputError
from gbinet.fusion.consistency import TRUST, agree
from gbinet.fusion.fuse import CERTAINTY, MIN_VIEWS, FusionConfig, Rule
from gbinet.model.calibration import Calibration
from gbinet.model.gbinet import GBiNet
from gbinet.provenance import maker

CAMERA = Camera(torch.tensor([[20.0, 0, 10], [0, 20, 8], [0, 0, 1]]), torch.eye(4), 20, 16)
shares = st.floats(0, 1)
certainties = st.floats(0.01, 0.99)


def flat(depth: float, confidence: float | None = None) -> DepthMap:
    whole = torch.full((16, 20), depth)
    return DepthMap(whole, CAMERA, None if confidence is None else torch.full_like(whole, confidence))


def kept(reference: DepthMap, sources: list[DepthMap], certainty: float, min_views: int = 1) -> bool:
    verdict = agree(
        reference,
        sources,
        max_distance=1.0,
        max_relative_depth=0.01,
        min_sources=min_views,
        dynamic=False,
        strict=True,
        certainty=certainty,
    )
    assert verdict.consistent.all() or not verdict.consistent.any()
    return bool(verdict.consistent.all())


@given(shares, st.lists(shares, min_size=1, max_size=5), certainties)
def test_probabilities_of_being_wrong_are_multiplied(
    own: float, others: list[float], certainty: float
) -> None:
    wrong = 1 - TRUST * own
    for other in others:
        wrong *= 1 - TRUST * other
    assume(abs(1 - wrong - certainty) > 1e-4)
    assert kept(flat(3.0, own), [flat(3.0, c) for c in others], certainty) == (1 - wrong >= certainty)


@given(shares, shares, shares, certainties)
def test_a_view_that_looks_through_the_point_speaks_against_it(
    own: float, other: float, through: float, certainty: float
) -> None:
    wrong = (1 - TRUST * own) * (1 - TRUST * other) / (1 - TRUST * through)
    assume(abs(1 - wrong - certainty) > 1e-4)
    sources = [flat(3.0, other), flat(3.5, through)]
    assert kept(flat(3.0, own), sources, certainty) == (1 - wrong >= certainty)


@given(shares, shares, shares, certainties)
def test_a_view_from_which_it_is_hidden_says_nothing(
    own: float, other: float, hiding: float, certainty: float
) -> None:
    reference, agreeing = flat(3.0, own), flat(3.0, other)
    assert kept(reference, [agreeing, flat(2.5, hiding)], certainty) == kept(reference, [agreeing], certainty)


@given(certainties)
def test_a_view_counts_the_more_the_closer_it_agrees(certainty: float) -> None:
    wrong = (1 - TRUST * 0.5) * (1 - TRUST * 0.5)  # half of the threshold: half of its confidence of 1
    assume(abs(1 - wrong - certainty) > 1e-3)
    assert kept(flat(3.0, 0.5), [flat(3.015, 1.0)], certainty) == (1 - wrong >= certainty)


def test_one_view_alone_never_decides() -> None:
    elsewhere = flat(9.0, 0.0)
    assert not kept(flat(3.0, 1.0), [elsewhere], certainty=0.01)
    assert kept(flat(3.0, 1.0), [flat(3.0, 1.0)], certainty=0.98)
    assert not kept(flat(3.0, 1.0), [flat(3.0, 1.0)], certainty=0.98, min_views=2)


def test_maps_without_confidence_count_as_confident() -> None:
    for certainty in (0.5, 0.98, 0.995):
        assert kept(flat(3.0), [flat(3.0)], certainty) == kept(flat(3.0, 1.0), [flat(3.0, 1.0)], certainty)


def test_certainty_decides_where_confidence_is_a_probability_and_nobody_asks_to_count() -> None:
    probable = {"probability": True}
    assert FusionConfig().rule_for(probable) == Rule(1, CERTAINTY)
    assert FusionConfig(certainty=0.5).rule_for(None) == Rule(1, 0.5)
    for made_by in (probable, None):  # the less is asked, the more is kept, down to nothing
        assert FusionConfig(certainty=0.0).rule_for(made_by) == Rule(1, 0.0)
    assert FusionConfig(certainty=0.5, min_views=4).rule_for(probable) == Rule(4, 0.5)
    for counting in (FusionConfig(min_views=2), FusionConfig(min_views=2, dynamic=True)):
        assert counting.rule_for(probable) == Rule(2, 0.0)
    assert FusionConfig(dynamic=True).rule_for(probable) == Rule(MIN_VIEWS, 0.0)
    for other in (None, {}, {"probability": False}, {"probability": "yes"}):
        assert FusionConfig().rule_for(other) == Rule(MIN_VIEWS, 0.0)


@pytest.mark.parametrize("wrong", [-0.1, 1.0, float("nan")])
def test_impossible_certainties_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match="--certainty"):
        FusionConfig(certainty=wrong)


def test_weights_say_whether_their_confidence_is_a_probability() -> None:
    bundled, published = GBiNet.from_pretrained(), GBiNet("gbinet")
    assert maker(bundled).probability and maker(bundled, bundled.config.stages).probability
    assert not maker(bundled, bundled.config.stages - 1).probability
    assert not maker(published).probability
    published.calibration = Calibration([0, 1], [0.1, 0.9])
    assert maker(published).probability
