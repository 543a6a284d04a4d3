"""Merges of the feature pyramid in training by their kernels equal the plain ones, forwards and backwards."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gbinet.ops.merge import merge, merge_plain


def gradients(result: Tensor, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    return [result.detach(), *torch.autograd.grad(result, inputs, upstream)]


@pytest.mark.usefixtures("fast")
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    channels=st.integers(1, 20), height=st.integers(1, 6), width=st.integers(1, 6), last=st.booleans()
)  # of the coarser map
def test_merge_in_training(
    kernel_device: torch.device, channels: int, height: int, width: int, last: bool
) -> None:
    torch.manual_seed(channels)
    own = torch.randn(2, 3, 2 * height, 2 * width)
    coarser = torch.randn(2, channels, height, width)
    if last:
        own, coarser = (t.contiguous(memory_format=torch.channels_last) for t in (own, coarser))
    own, coarser = (t.to(kernel_device).requires_grad_() for t in (own, coarser))
    lateral = nn.Conv2d(3, channels, 1).to(kernel_device)
    inputs = [own, coarser, *lateral.parameters()]
    upstream = torch.randn(2, channels, 2 * height, 2 * width).to(kernel_device)
    expected = gradients(merge_plain(own, coarser, lateral), inputs, upstream)
    for a, b in zip(gradients(merge(own, coarser, lateral), inputs, upstream), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fast")
def test_half_precision_stays_half(kernel_device: torch.device) -> None:
    """As under autocast: the enlarged map is rounded once, with the sum."""
    torch.manual_seed(0)
    own, coarser = torch.randn(1, 8, 8, 12), torch.randn(1, 8, 4, 6)
    inputs = [t.to(kernel_device, torch.float16).requires_grad_() for t in (own, coarser)]
    wide = [t.detach().float().requires_grad_() for t in inputs]
    lateral = nn.Identity()
    upstream = torch.randn(1, 8, 8, 12).to(kernel_device, torch.float16)
    result = gradients(merge(*inputs, lateral), inputs, upstream)
    expected = gradients(merge_plain(*wide, lateral), wide, upstream.float())
    for a, b in zip(result, expected, strict=True):
        assert a.dtype == torch.float16
        torch.testing.assert_close(a.float(), b, rtol=2e-3, atol=1e-3)
