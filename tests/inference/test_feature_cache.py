from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.inference.feature_cache import FeatureCache

CPU = torch.device("cpu")


@given(asked=st.lists(st.integers(0, 5), max_size=30))
def test_features_are_dropped_after_their_last_use(asked: list[int]) -> None:
    """Every view is encoded once, and held from its first use to its last."""
    cache = FeatureCache(lambda view: (torch.full((4,), float(view)),), 1 << 20, CPU, CPU)
    cache.expect(asked)
    for number, view in enumerate(asked):
        assert cache.get(view)[0].tolist() == [view] * 4
        begun, to_come = set(asked[: number + 1]), set(asked[number + 1 :])
        assert {v for v in range(6) if v in cache} == begun & to_come
        assert cache.held_bytes == 16 * len(begun & to_come)
    assert set(cache.encoded.values()) <= {1}


@given(expected=st.lists(st.integers(0, 3), max_size=6), asked=st.lists(st.integers(0, 3), max_size=12))
def test_expectations_may_be_wrong(expected: list[int], asked: list[int]) -> None:
    """Only the number of encodings depends on them, never what comes."""
    cache = FeatureCache(lambda view: (torch.full((4,), float(view)),), 32, CPU, CPU)
    cache.expect(expected)
    for view in asked:
        assert cache.get(view)[0].tolist() == [view] * 4
        assert cache.held_bytes <= 32
