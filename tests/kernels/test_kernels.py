"""Each kernel equals its plain reference, forwards and backwards."""

import pytest
import torch
from torch import Tensor

from gbinet.inference.engine import _pack
from gbinet.inference.fold import _fold
from gbinet.kernels import deform as fast_deform
from gbinet.kernels import warp as fast_warp
from gbinet.kernels.cost_volume import fused_cost_volume
from gbinet.model.cost_volume import ViewWeight, fuse_views
from gbinet.model.deform import deform_conv2d_plain
from gbinet.model.search import SearchGrid, SearchState, cell_depth, hypotheses
from gbinet.model.warp import warp_correlation_plain


def relative_gap(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))


@pytest.mark.parametrize("channels, outputs", [(16, 8), (32, 16), (3, 5)])
def test_deform_conv(channels: int, outputs: int, kernel_device: torch.device) -> None:
    torch.manual_seed(channels)
    features = torch.randn(2, channels, 9, 13).to(kernel_device).requires_grad_()
    offsets = (3 * torch.randn(2, 18, 9, 13)).to(kernel_device).requires_grad_()
    weight = torch.randn(outputs, channels, 3, 3).to(kernel_device).requires_grad_()
    upstream = torch.randn(2, outputs, 9, 13).to(kernel_device)
    inputs = (features, offsets, weight)
    plain = deform_conv2d_plain(*inputs)
    fast = fast_deform.deform_conv2d(*inputs)
    assert relative_gap(fast, plain) < 1e-5
    expected = torch.autograd.grad(plain, inputs, upstream)
    for gradient, reference in zip(torch.autograd.grad(fast, inputs, upstream), expected, strict=True):
        assert gradient.shape == reference.shape
        assert relative_gap(gradient, reference) < 1e-4


@pytest.mark.parametrize("channels, groups, bins", [(8, 4, 4), (16, 8, 2), (64, 8, 6)])
def test_warp_correlation(channels: int, groups: int, bins: int, kernel_device: torch.device) -> None:
    torch.manual_seed(bins)
    reference = torch.randn(2, channels, 7, 10).to(kernel_device).requires_grad_()
    source = torch.randn(2, channels, 8, 11).to(kernel_device).requires_grad_()
    matrix = (torch.eye(3) + 0.05 * torch.randn(2, 3, 3)).to(kernel_device)
    offset = torch.tensor([[3.0, -2.0, 0.1], [-4.0, 1.0, -3.5]]).to(kernel_device)  # some points fall behind
    depth = (1 + 4 * torch.rand(2, bins, 7, 10)).to(kernel_device)
    upstream = torch.randn(2, groups, bins, 7, 10).to(kernel_device)
    inputs = (reference, source)
    plain = warp_correlation_plain(reference, source, matrix, offset, depth, groups)
    fast = fast_warp.warp_correlation(reference, source, matrix, offset, depth, groups)
    assert plain.abs().max() > 0
    assert relative_gap(fast, plain) < 1e-4
    expected = torch.autograd.grad(plain, inputs, upstream)
    for gradient, reference_gradient in zip(
        torch.autograd.grad(fast, inputs, upstream), expected, strict=True
    ):
        assert relative_gap(gradient, reference_gradient) < 1e-4


def test_one_view_of_many_needs_no_copy(kernel_device: torch.device) -> None:
    views = torch.randn(2, 3, 5, 6, 8).permute(0, 1, 4, 2, 3)  # [B, V, C, H, W], channels last in memory
    rows = fast_warp.rows_of_channels(views[:, 1])
    assert rows.data_ptr() == views[:, 1].data_ptr()


@pytest.mark.parametrize(
    "bins, first_bins, stage, inverse",
    [(4, 4, 0, False), (4, 16, 0, True), (4, 4, 1, False), (6, 6, 2, True), (2, 2, 3, False)],
)
def test_fused_cost_volume(
    bins: int, first_bins: int, stage: int, inverse: bool, kernel_device: torch.device
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
        _fold(block)
    with torch.no_grad():
        expected = fuse_views(reference, sources, matrices, offsets, hypotheses(state), net, groups)
        packed = _pack(net, kernel_device, torch.float32)
        assert packed is not None
        transforms = torch.cat([matrices.flatten(2), offsets], dim=2)
        fused = fused_cost_volume(reference, sources, transforms, state, packed, groups)
        # Geometry of images twice as large: the same, for features half their size.
        larger = transforms * torch.tensor([1, 1, 2, 1, 1, 2, 0.5, 0.5, 1, 2, 2, 1], device=kernel_device)
        halved = fused_cost_volume(reference, sources, larger, state, packed, groups, scale=2)
    assert fused.shape == expected.shape
    assert relative_gap(fused, expected) < 1e-4
    assert relative_gap(halved, expected) < 1e-4


@pytest.mark.parametrize("inverse", [False, True])
def test_fused_cost_volume_of_given_cells(inverse: bool, kernel_device: torch.device) -> None:
    """The cells' centres are tested, and the result is written side by side where the caller wants it."""
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
        _fold(block)
    room = torch.full((1, height, width, parents * groups + 4), 7.0, device=kernel_device)
    with torch.no_grad():
        depth = cell_depth(state, cells)
        expected = fuse_views(reference, sources, matrices, offsets, depth, net, groups)
        packed = _pack(net, kernel_device, torch.float32)
        assert packed is not None
        transforms = torch.cat([matrices.flatten(2), offsets], dim=2)
        fused = fused_cost_volume(
            reference, sources, transforms, state, packed, groups, cells=cells, output=room
        )
    assert relative_gap(fused, expected) < 1e-4
    beside = expected.permute(0, 3, 4, 2, 1).flatten(3)  # [1, H, W, N * G]
    assert relative_gap(room[..., : parents * groups], beside) < 1e-4
    assert bool((room[..., parents * groups :] == 7.0).all())
