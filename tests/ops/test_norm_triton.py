"""Fused batch norm and ReLU equal torch's, forwards, backwards and in the statistics they keep."""

import copy

import pytest
import torch
from torch import nn

from gbinet.ops.norm import norm_relu_fast, norm_relu_plain, suits


@pytest.mark.parametrize("shape", [(2, 8, 3, 9, 7), (3, 16, 11, 5), (1, 64, 2, 4, 4)])
def test_norm_relu(shape: tuple[int, ...], kernel_device: torch.device) -> None:
    torch.manual_seed(len(shape))
    channels = shape[1]
    plain = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm3d)(channels).to(kernel_device)
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    fused = copy.deepcopy(plain)
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    for _ in range(2):  # the second time about running means that are not zero
        values = (3 + torch.randn(shape)).to(kernel_device).contiguous(memory_format=layout)
        upstream = torch.randn(shape).to(kernel_device)
        a, b = values.clone().requires_grad_(), values.clone().requires_grad_()
        for norm in (plain, fused):
            norm.zero_grad()
        expected, result = norm_relu_plain(a, plain), norm_relu_fast(b, fused)
        expected.backward(upstream)
        result.backward(upstream)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5)
        for x, y in zip(fused.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    for x, y in zip(fused.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_what_suits() -> None:
    assert suits(nn.BatchNorm3d(8))
    assert not suits(nn.BatchNorm3d(8).eval())
    assert not suits(nn.BatchNorm3d(6))
    assert not suits(nn.SyncBatchNorm(8))
    assert not suits(nn.BatchNorm3d(8, momentum=None))
