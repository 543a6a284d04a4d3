"""Building blocks against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gbinet.model.layers import Conv3d, ConvTranspose3d


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs", "kernel"), [(4, 8, 3), (8, 1, 3), (3, 5, 1)])
def test_conv3d_is_torchs_convolution(inputs: int, outputs: int, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    layer = Conv3d(inputs, outputs, kernel, (1, stride, stride), padding=kernel // 2)
    volume = torch.randn(2, inputs, 4, 9, 14, requires_grad=True)
    found = layer(volume)
    expected = F.conv3d(volume, layer.weight, layer.bias, (1, stride, stride), kernel // 2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    wanted = [volume, *layer.parameters()]
    upstream = torch.randn_like(found)
    gradients = torch.autograd.grad(found, wanted, upstream)
    for one, other in zip(gradients, torch.autograd.grad(expected, wanted, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_conv3d_in_other_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, volume = Conv3d(4, 8, 3, padding=1), torch.randn(1, 4, 4, 8, 8)
    expected = layer(volume)
    found = layer.to(dtype)(volume.to(dtype))
    assert found.dtype == dtype
    assert (found - expected).abs().max() < 10 * torch.finfo(dtype).eps
    assert Conv3d(4, 8, 3, padding=1).double()(volume.double()).dtype == torch.float64


def test_conv3d_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Conv3d(4, 8, 3, padding=1)(torch.randn(1, 4, 4, 8, 8)).dtype == torch.bfloat16


@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 7), (8, 6)])
@pytest.mark.parametrize("bias", [False, True])
def test_transposed_convolution_is_torchs(height: int, width: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = ConvTranspose3d(6, 4)
    if bias:  # a folded batch norm leaves one
        layer.bias = nn.Parameter(torch.randn(4))
    volume = torch.randn(2, 6, 3, height, width, requires_grad=True)
    found, expected = layer(volume), nn.ConvTranspose3d.forward(layer, volume)
    assert found.shape == (2, 4, 3, 2 * height, 2 * width)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    upstream, wanted = torch.randn(found.shape), [volume, *layer.parameters()]
    gradients = torch.autograd.grad(found, wanted, upstream)
    for one, other in zip(gradients, torch.autograd.grad(expected, wanted, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert layer.double()(volume.double()).dtype == torch.float64
