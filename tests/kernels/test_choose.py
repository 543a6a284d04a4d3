"""What a stage decides in one pass equals what the search decides step by step."""

import pytest
import torch

from gbinet.kernels import choose as fast
from gbinet.model import search
from gbinet.model.search import SearchGrid, SearchState


@pytest.mark.parametrize(
    "bins, first_bins, stage, inverse",
    [(4, 4, 0, False), (4, 16, 0, True), (4, 4, 3, False), (6, 6, 2, True), (2, 2, 3, False)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_choose_and_expect(
    bins: int, first_bins: int, stage: int, inverse: bool, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    torch.manual_seed(stage)
    grid = SearchGrid(bins, first_bins, inverse)
    height, width = 9, 37
    cells = grid.cells(stage) if stage else 1
    cell = torch.randint(0, cells, (2, height, width), dtype=torch.int32).to(kernel_device)
    state = SearchState(grid, torch.tensor([[2.0, 9.0], [1.0, 3.0]], device=kernel_device), stage, cell)
    padded = 3 * torch.randn(2, state.num_bins, height + 2, width + 3)
    logits = padded.to(kernel_device, dtype)[:, :, :height, :width]  # rows lie apart, as after cropping
    probabilities = logits.float().softmax(1)
    after, largest = fast.choose(state, logits)
    # Half precision has equal logits now and then; then either bin is right, and probabilities tell.
    expected = search.descend(state, logits.max(1).indices)
    same = after.cell == expected.cell
    assert after.stage == stage + 1 and after.cell.dtype == torch.int32
    assert same.all() if dtype == torch.float32 else same.float().mean() > 0.98
    torch.testing.assert_close(largest, probabilities.amax(1, keepdim=True), rtol=1e-5, atol=1e-6)
    _, nearby = fast.choose(state, logits, nearby=True)
    alike = (nearby - search.nearby(probabilities)).abs() < 1e-5
    assert alike.all() if dtype == torch.float32 else alike.float().mean() > 0.98
    depth, plain = fast.expected_depth(state, logits), search.expected_depth(state, probabilities)
    close = (depth - plain).abs() < 1e-4 * plain
    assert close.all() if dtype == torch.float32 else close.float().mean() > 0.98
