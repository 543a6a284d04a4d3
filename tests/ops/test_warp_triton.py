"""Warp and correlation in one pass equal the plain ones, forwards and backwards."""

import pytest
import torch
from kernel_fixtures import relative_gap

from gbinet.ops.warp import warp_correlation_fast, warp_correlation_plain


@pytest.mark.parametrize("channels, groups, bins", [(8, 4, 4), (16, 8, 2), (64, 8, 6)])
def test_warp_correlation(channels: int, groups: int, bins: int, kernel_device: torch.device) -> None:
    torch.manual_seed(bins)
    reference = torch.randn(2, channels, 7, 10).to(kernel_device).requires_grad_()
    source = torch.randn(2, channels, 8, 11).to(kernel_device).requires_grad_()
    matrix = torch.eye(3) + 0.05 * torch.randn(2, 3, 3)
    offset = torch.tensor([[3.0, -2.0, 0.1], [-4.0, 1.0, -3.5]])  # some points fall behind
    transform = torch.cat([matrix.flatten(1), offset], dim=1).to(kernel_device)
    depth = (1 + 4 * torch.rand(2, bins, 7, 10)).to(kernel_device)
    upstream = torch.randn(2, groups, bins, 7, 10).to(kernel_device)
    inputs = (reference, source)
    plain = warp_correlation_plain(reference, source, transform, depth, groups)
    fast = warp_correlation_fast(reference, source, transform, depth, groups)
    assert plain.abs().max() > 0
    assert relative_gap(fast, plain) < 1e-4
    expected = torch.autograd.grad(plain, inputs, upstream)
    for gradient, reference_gradient in zip(
        torch.autograd.grad(fast, inputs, upstream), expected, strict=True
    ):
        assert relative_gap(gradient, reference_gradient) < 1e-4


def test_one_view_of_many_needs_no_copy(kernel_device: torch.device) -> None:
    from gbinet.ops.layout import pixel_rows

    views = torch.randn(2, 3, 5, 6, 8).permute(0, 1, 4, 2, 3)  # [B, V, C, H, W], channels last in memory
    rows = pixel_rows(views[:, 1])
    assert rows.data_ptr() == views[:, 1].data_ptr()
