"""The maps between two stages: one pass equals the plain code."""

import pytest
import torch

from gbinet.kernels import smooth as fast
from gbinet.kernels.choose import expected_place
from gbinet.model import search
from gbinet.model.search import SearchGrid, SearchState
from gbinet.model.smoothing import smoothed_plain


@pytest.mark.parametrize("radius", [1, 2, 5])
@pytest.mark.parametrize("reach", [6, 24])
def test_smooth(radius: int, reach: int, kernel_device: torch.device) -> None:
    torch.manual_seed(radius)
    values = 2000 + 10 * torch.randn(2, 19, 41, device=kernel_device)
    result = fast.smooth(values, radius, reach)
    torch.testing.assert_close(result, smoothed_plain(values, radius, reach), rtol=0, atol=2e-3)


@pytest.mark.parametrize("size", [(5, 7), (1, 1), (16, 33)])
@pytest.mark.parametrize("edge", [1, 6, 1000])
def test_double(size: tuple[int, int], edge: int, kernel_device: torch.device) -> None:
    torch.manual_seed(edge)
    cells = torch.randint(0, 40, (2, *size), dtype=torch.int32, device=kernel_device)
    result = fast.double(cells, edge)
    assert result.dtype == torch.int32
    assert torch.equal(result, search.doubled_plain(cells, edge))


@pytest.mark.parametrize("bins, stage", [(4, 0), (4, 3), (6, 2)])
def test_expected_place(bins: int, stage: int, kernel_device: torch.device) -> None:
    torch.manual_seed(stage)
    grid = SearchGrid(bins, bins, inverse=True)
    cell = torch.randint(0, grid.cells(stage) if stage else 1, (2, 9, 37), dtype=torch.int32)
    depth_range = torch.tensor([[2.0, 9.0], [1.0, 3.0]], device=kernel_device)
    state = SearchState(grid, depth_range, stage, cell.to(kernel_device))
    logits = 3 * torch.randn(2, state.num_bins, 9, 37, device=kernel_device)
    place, sure = expected_place(state, logits, nearby=True)
    probabilities = logits.softmax(1)
    torch.testing.assert_close(place, search.expected_place(state, probabilities), rtol=0, atol=1e-4)
    torch.testing.assert_close(sure, search.nearby(probabilities), rtol=0, atol=1e-5)
