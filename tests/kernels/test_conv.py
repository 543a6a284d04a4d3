"""The small-channel convolutions equal torch's, with bias, ReLU and skip connection."""

import pytest
import torch
import torch.nn.functional as F

from gbinet.kernels import conv as fast
from gbinet.kernels.merge import merge


@pytest.mark.parametrize(
    "inputs, outputs, stride, relu, skip",
    [(4, 8, 1, True, False), (8, 1, 1, False, False), (8, 16, 2, True, False), (32, 32, 1, True, True)],
)
def test_conv3d(
    inputs: int, outputs: int, stride: int, relu: bool, skip: bool, kernel_device: torch.device
) -> None:
    torch.manual_seed(inputs)
    volume = torch.randn(2, inputs, 3, 6, 10).to(kernel_device)
    weight = torch.randn(outputs, inputs, 3, 3, 3).to(kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv3d(volume, weight, bias, (1, stride, stride), 1)
    expected = expected.relu() if relu else expected
    extra = torch.randn_like(expected) if skip else None
    expected = expected + extra if extra is not None else expected
    result = fast.conv3d(volume, fast.pack(weight), bias, stride=stride, relu=relu, skip=extra)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inputs, outputs, skip", [(16, 8, True), (64, 32, False), (5, 3, True)])
def test_conv_transpose3d(inputs: int, outputs: int, skip: bool, kernel_device: torch.device) -> None:
    torch.manual_seed(inputs)
    volume = torch.randn(2, inputs, 3, 4, 5).to(kernel_device)
    weight = torch.randn(inputs, outputs, 3, 3, 3).to(kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv_transpose3d(volume, weight, bias, (1, 2, 2), 1, (0, 1, 1)).relu()
    extra = torch.randn_like(expected) if skip else None
    expected = expected + extra if extra is not None else expected
    result = fast.conv_transpose3d(volume, fast.pack(weight, True), bias, skip=extra)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inputs, outputs, kernel, stride", [(3, 8, 3, 1), (8, 16, 5, 2), (32, 18, 3, 1)])
def test_conv2d(inputs: int, outputs: int, kernel: int, stride: int, kernel_device: torch.device) -> None:
    torch.manual_seed(inputs)
    image = torch.randn(2, inputs, 8, 14).to(kernel_device)
    weight = torch.randn(outputs, inputs, kernel, kernel).to(kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv2d(image, weight, bias, stride, kernel // 2).relu()
    result = fast.conv2d(image, fast.pack(weight), bias, stride=stride)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_merge(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    own = torch.randn(2, 8, 6, 10).to(kernel_device)
    coarser = torch.randn(2, 16, 3, 5).to(kernel_device)
    weight = torch.randn(16, 8, 1, 1).to(kernel_device)
    bias = torch.randn(16).to(kernel_device)
    upsampled = F.interpolate(coarser, scale_factor=2, mode="bilinear", align_corners=False)
    expected = F.conv2d(own, weight, bias) + upsampled
    result = merge(own, coarser, weight[:, :, 0, 0].T.contiguous(), bias)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
