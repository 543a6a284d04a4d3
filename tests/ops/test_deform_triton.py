"""The deformable convolution by its kernels equals the plain one, forwards and backwards."""

import pytest
import torch
from kernel_fixtures import relative_gap

from gbinet.ops.deform import deform_conv2d, deform_conv2d_fast, deform_conv2d_plain, empty_output, pack


@pytest.mark.parametrize("channels, outputs", [(16, 8), (32, 16), (3, 5)])
def test_deform_conv(channels: int, outputs: int, kernel_device: torch.device) -> None:
    """Backwards a block holds 32 pixels of a line with 32 channels, 64 with less."""
    torch.manual_seed(channels)
    features = torch.randn(2, channels, 3, 37).to(kernel_device).requires_grad_()
    offsets = (3 * torch.randn(2, 18, 3, 37)).to(kernel_device).requires_grad_()
    weight = torch.randn(outputs, channels, 3, 3).to(kernel_device).requires_grad_()
    upstream = torch.randn(2, outputs, 3, 37).to(kernel_device)
    inputs = (features, offsets, weight)
    plain = deform_conv2d_plain(*inputs)
    fast = deform_conv2d_fast(*inputs)
    assert relative_gap(fast, plain) < 1e-5
    expected = torch.autograd.grad(plain, inputs, upstream)
    for gradient, reference in zip(torch.autograd.grad(fast, inputs, upstream), expected, strict=True):
        assert gradient.shape == reference.shape
        assert relative_gap(gradient, reference) < 1e-4


@pytest.mark.usefixtures("fast")
def test_packed_and_written_into_given_memory(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    features = torch.randn(2, 16, 9, 13).to(kernel_device).contiguous(memory_format=torch.channels_last)
    offsets = (3 * torch.randn(2, 18, 9, 13)).to(kernel_device)
    weight = torch.randn(8, 16, 3, 3).to(kernel_device)
    outputs = empty_output(features, 3, 2, 8, 9, 13).fill_(7)
    result = deform_conv2d(features, offsets, weight, pack(weight), outputs[1])
    assert result.data_ptr() == outputs[1].data_ptr()
    expected = deform_conv2d_plain(features, offsets, weight)
    assert relative_gap(outputs[1], expected) < 1e-5
    assert bool((outputs[::2] == 7).all())
    assert torch.equal(deform_conv2d(features, offsets, weight, pack(weight)), result)
    assert relative_gap(deform_conv2d(features, offsets, weight, None, outputs[2]), expected) < 1e-5
