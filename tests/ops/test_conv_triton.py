"""Convolutions by the kernels equal torch's, with bias, ReLU and skip connection."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gbinet.ops import conv
from gbinet.ops.merge import merge, merge_plain

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize(
    "inputs, outputs, stride, relu, skip",
    [(4, 8, 1, True, False), (8, 1, 1, False, False), (8, 16, 2, True, False), (32, 32, 1, True, True)],
)
@pytest.mark.parametrize("planes", [3, 12])  # few ones, side by side, and more than are taken that way
def test_conv3d(
    inputs: int, outputs: int, stride: int, relu: bool, skip: bool, planes: int, kernel_device: torch.device
) -> None:
    torch.manual_seed(inputs)
    volume = torch.randn(2, inputs, planes, 6, 10).to(kernel_device)
    layer = nn.Conv3d(inputs, outputs, 3, (1, stride, stride), 1, bias=relu).to(kernel_device)
    expected = layer(volume).relu() if relu else layer(volume)
    extra = torch.randn_like(expected) if skip else None
    with torch.no_grad():
        result = conv.conv(volume, layer, conv.pack(layer), relu=relu, skip=extra)
    torch.testing.assert_close(result, expected if extra is None else expected + extra, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inputs, outputs, planes", [(16, 8, 3), (64, 32, 3), (5, 3, 4), (16, 8, 12)])
def test_transposed_convolution_adds_into_its_skip(
    inputs: int, outputs: int, planes: int, kernel_device: torch.device
) -> None:
    torch.manual_seed(inputs)
    volume = torch.randn(2, inputs, planes, 4, 5).to(kernel_device)
    layer = nn.ConvTranspose3d(inputs, outputs, 3, (1, 2, 2), 1, (0, 1, 1)).to(kernel_device)
    skip = torch.randn(2, outputs, planes, 8, 10).to(kernel_device)
    expected = layer(volume).relu() + skip
    skip = skip.contiguous(memory_format=torch.channels_last_3d)
    with torch.no_grad():
        result = conv.conv_transpose_relu_add(volume, layer, conv.pack(layer), skip)
    assert result.data_ptr() == skip.data_ptr()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "inputs, outputs, kernel, stride, dilation",
    [(3, 8, 3, 1, 1), (8, 16, 5, 2, 1), (32, 18, 3, 1, 1), (8, 8, 3, 1, 4)],
)
@pytest.mark.parametrize("planar", [False, True])
def test_conv2d(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    dilation: int,
    planar: bool,
    kernel_device: torch.device,
) -> None:
    torch.manual_seed(inputs)
    image = torch.randn(2, inputs, 8, 14).to(kernel_device)
    layer = nn.Conv2d(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation).to(kernel_device)
    with torch.no_grad():
        result = conv.conv(image, layer, conv.pack(layer), relu=True, planar=planar)
    assert result.is_contiguous() == planar
    torch.testing.assert_close(result, layer(image).relu(), rtol=1e-4, atol=1e-4)


def test_more_channels_than_inputs_and_a_skip(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 24, 8, 14).to(kernel_device)
    layer = nn.Conv2d(22, 8, 3, padding=1).to(kernel_device)
    skip = torch.randn(1, 8, 8, 14).to(kernel_device)
    with torch.no_grad():
        result = conv.conv(image, layer, conv.pack(layer), relu=True, skip=skip)
    torch.testing.assert_close(result, layer(image[:, :22]).relu() + skip, rtol=1e-4, atol=1e-4)


def test_merge(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    own = torch.randn(2, 8, 6, 10).to(kernel_device)
    coarser = torch.randn(2, 16, 3, 5).to(kernel_device)
    lateral = nn.Conv2d(8, 16, 1).to(kernel_device)
    with torch.no_grad():
        result = merge(own, coarser, lateral, conv.pack(lateral))
        expected = merge_plain(own, coarser, lateral)
    enlarged = F.interpolate(coarser, scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(expected, lateral(own) + enlarged, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_1x1x1_convolutions_are_not_packed(kernel_device: torch.device) -> None:
    assert conv.pack(nn.Conv3d(4, 16, 1).to(kernel_device)) is None
