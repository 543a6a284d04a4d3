"""The cost volume in one pass equals the plain one."""

import pytest
import torch
from kernel_fixtures import relative_gap

from gbinet import ops
from gbinet.model.cost_volume import ViewWeight
from gbinet.model.search import SearchGrid, SearchState, bins_at, hypotheses
from gbinet.ops.cost_volume import cost_volume_plain
from gbinet.ops.warp import at_scale


@pytest.mark.parametrize(
    "bins, first_bins, stage, inverse",
    [(4, 4, 0, False), (4, 16, 0, True), (4, 4, 1, False), (6, 6, 2, True), (2, 2, 3, False)],
)
def test_cost_volume(
    bins: int,
    first_bins: int,
    stage: int,
    inverse: bool,
    kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(stage)
    grid = SearchGrid(bins, first_bins, inverse)
    channels, groups, height, width = 8, 4, 6, 9
    reference = torch.randn(2, channels, height, width).to(kernel_device)
    sources = [torch.randn(2, channels, 6 + i, 9 - i).to(kernel_device) for i in range(3)]
    matrices = (torch.eye(3) + 0.03 * torch.randn(2, 3, 3, 3)).to(kernel_device)
    offsets = torch.randn(2, 3, 3).to(kernel_device)
    cells = grid.cells(stage) if stage else 1
    cell = torch.randint(0, cells, (2, height, width), dtype=torch.int32).to(kernel_device)
    state = SearchState(grid, torch.tensor([[2.0, 9.0], [1.0, 3.0]], device=kernel_device), stage, cell)
    net = ViewWeight(groups).to(kernel_device).eval()
    for block in net.hidden:
        torch.nn.init.normal_(block.conv.weight)
        torch.nn.init.normal_(block.norm.bias)
        torch.nn.init.uniform_(block.norm.running_var, 0.5, 2.0)
        block.fold()
    maps = [reference, *sources]
    with torch.no_grad():
        transforms = torch.cat([matrices.flatten(2), offsets], dim=2)
        expected = cost_volume_plain(maps, transforms, hypotheses(state), net, groups)
        monkeypatch.setattr(ops, "usable", lambda *tensors: True)  # the interpreter serves CPU tensors
        net.pack(torch.float32)
        assert net.packed is not None
        fused = net.cost_volume(maps, transforms, state.bins, 1)
        # Geometry of images twice as large: the same, for features half their size.
        larger = transforms * torch.tensor([1, 1, 2, 1, 1, 2, 0.5, 0.5, 1, 2, 2, 1], device=kernel_device)
        halved = net.cost_volume(maps, larger, state.bins, 2)
        assert torch.equal(at_scale(larger, 2), transforms)
    assert fused.shape == expected.shape
    assert relative_gap(fused, expected) < 1e-4
    assert relative_gap(halved, expected) < 1e-4


@pytest.mark.parametrize("inverse", [False, True])
def test_cost_volume_of_given_cells(
    inverse: bool, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells' centres are tested, and all that a pixel gets lies side by side."""
    torch.manual_seed(0)
    channels, groups, height, width, parents = 8, 4, 6, 9, 3
    grid = SearchGrid(6, 16, inverse)
    reference = torch.randn(1, channels, height, width).to(kernel_device)
    sources = [torch.randn(1, channels, height, width).to(kernel_device) for _ in range(2)]
    matrices = (torch.eye(3) + 0.03 * torch.randn(1, 2, 3, 3)).to(kernel_device)
    offsets = torch.randn(1, 2, 3).to(kernel_device)
    cells = torch.randint(0, grid.cells(2), (1, parents, height, width), dtype=torch.int32).to(kernel_device)
    state = SearchState(grid, torch.tensor([[2.0, 9.0]], device=kernel_device), 2, cells[:, 0])
    net = ViewWeight(groups).to(kernel_device).eval()
    for block in net.hidden:
        block.fold()
    maps, tested = [reference, *sources], bins_at(state, cells)
    with torch.no_grad():
        transforms = torch.cat([matrices.flatten(2), offsets], dim=2)
        expected = cost_volume_plain(maps, transforms, tested.depths(), net, groups)
        monkeypatch.setattr(ops, "usable", lambda *tensors: True)
        net.pack(torch.float32)
        fused = net.cost_volume(maps, transforms, tested, 1)
    assert relative_gap(fused, expected) < 1e-4
    matches = fused.transpose(1, 2).flatten(1, 2)  # [1, N * G, H, W]
    assert matches.data_ptr() == fused.data_ptr() and matches.is_contiguous(memory_format=torch.channels_last)
