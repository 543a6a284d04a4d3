"""The median of few maps is torch's."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.model.geometry import lower_median

NUMBERS = st.floats(width=32)  # infinite and not-a-number ones too


@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.tuples(*[NUMBERS] * n), min_size=1, max_size=4)))
def test_lower_median_is_torchs(rows: list[tuple[float, ...]]) -> None:
    values = torch.tensor(rows)  # [B, N]
    torch.testing.assert_close(lower_median(values), values.median(1).values, rtol=0, atol=0, equal_nan=True)
