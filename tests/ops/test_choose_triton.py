"""What a stage decides in one pass equals what the search decides step by step."""

import pytest
import torch

from gbinet.model.search import SearchGrid, SearchState
from gbinet.ops import choose


def state_of(bins: int, first_bins: int, stage: int, inverse: bool, device: torch.device) -> SearchState:
    torch.manual_seed(stage)
    grid = SearchGrid(bins, first_bins, inverse)
    cell = torch.randint(0, grid.cells(stage) if stage else 1, (2, 9, 37), dtype=torch.int32).to(device)
    return SearchState(grid, torch.tensor([[2.0, 9.0], [1.0, 3.0]], device=device), stage, cell)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "bins, first_bins, stage, inverse",
    [(4, 4, 0, False), (4, 16, 0, True), (4, 4, 3, False), (6, 6, 2, True), (2, 2, 3, False)],
)
@pytest.mark.parametrize("nearby", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cells_fractional_cells_and_confidence(
    bins: int,
    first_bins: int,
    stage: int,
    inverse: bool,
    nearby: bool,
    dtype: torch.dtype,
    kernel_device: torch.device,
) -> None:
    state = state_of(bins, first_bins, stage, inverse, kernel_device)
    padded = 3 * torch.randn(2, state.num_bins, 11, 40)
    logits = padded.to(kernel_device, dtype)[:, :, :9, :37]  # rows lie apart, as after cropping
    share = 1.0 if dtype == torch.float32 else 0.98  # half precision has equal logits now and then
    cell, confidence = choose.choose(state.bins, logits, nearby)
    expected, plain = choose.choose_plain(state.bins, logits, nearby)
    assert cell.dtype == expected.dtype == torch.int32
    assert (cell == expected).float().mean() >= share
    assert ((confidence - plain).abs() < 1e-5).float().mean() >= share
    expected, confidence = choose.choose(state.bins, logits, nearby, fractional=True)
    wanted, plain = choose.choose_plain(state.bins, logits, nearby, fractional=True)
    assert ((expected - wanted).abs() < 1e-4).float().mean() >= share
    assert ((confidence - plain).abs() < 1e-5).float().mean() >= share


@pytest.mark.usefixtures("fast")
def test_fractional_cells_have_a_gradient_where_logits_have_one(kernel_device: torch.device) -> None:
    state = state_of(4, 4, 2, True, kernel_device)
    logits = torch.randn(2, 4, 9, 37).to(kernel_device).requires_grad_()
    expected, confidence = choose.choose(state.bins, logits, True, fractional=True)
    assert expected.requires_grad and confidence.requires_grad
    assert not any(t.requires_grad for t in choose.choose(state.bins, logits.detach()))
