"""Upsampling in one pass equals the plain code."""

import pytest
import torch

from gbinet.ops.upsample import upsample_cells, upsample_cells_plain

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("size", [(5, 7), (1, 1), (16, 33)])
@pytest.mark.parametrize("edge", [1, 6, 1000])
def test_upsample_cells(size: tuple[int, int], edge: int, kernel_device: torch.device) -> None:
    torch.manual_seed(edge)
    cells = torch.randint(0, 40, (2, *size), dtype=torch.int32, device=kernel_device)
    result = upsample_cells(cells, edge)
    assert result.dtype == torch.int32
    assert torch.equal(result, upsample_cells_plain(cells, edge))
