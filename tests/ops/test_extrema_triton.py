"""Smallest and largest values in one pass equal the plain code."""

import pytest
import torch

from gbinet.ops.extrema import local_extrema, local_extrema_plain

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("reach, factor", [(1, 2), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_local_extrema(reach: int, factor: int, dtype: torch.dtype, kernel_device: torch.device) -> None:
    torch.manual_seed(reach)
    most = 2**28 if dtype == torch.int32 else 2**24  # cells of a search; integers that float32 holds
    values = torch.randint(most - 4000, most, (2, 11, 25), device=kernel_device).to(dtype)  # two blocks
    size = (11 * factor, 25 * factor)
    result = local_extrema(values, reach, size)
    assert result.dtype == dtype and torch.equal(result, local_extrema_plain(values, reach, size))
