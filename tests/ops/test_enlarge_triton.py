"""Enlarging in one pass equals the plain code."""

import pytest
import torch

from gbinet.ops.enlarge import doubled, doubled_plain

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("size", [(5, 7), (1, 1), (16, 33)])
@pytest.mark.parametrize("edge", [1, 6, 1000])
def test_double(size: tuple[int, int], edge: int, kernel_device: torch.device) -> None:
    torch.manual_seed(edge)
    cells = torch.randint(0, 40, (2, *size), dtype=torch.int32, device=kernel_device)
    result = doubled(cells, edge)
    assert result.dtype == torch.int32
    assert torch.equal(result, doubled_plain(cells, edge))
