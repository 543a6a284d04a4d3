"""Convolutions in strips equal torch's."""

import pytest
import torch
import torch.nn.functional as F

from gbinet.ops.conv import packed_weight

strips = pytest.importorskip("gbinet.ops.strips_triton", exc_type=ImportError)


@pytest.mark.parametrize(
    "inputs, outputs, dilation, relu, skip, planar",
    [
        (4, 8, 1, True, False, False),
        (8, 8, 1, True, True, False),
        (16, 18, 1, False, False, True),
        (24, 16, 1, True, False, False),
        (16, 16, 4, True, True, False),
    ],
)
def test_of_images(
    inputs: int,
    outputs: int,
    dilation: int,
    relu: bool,
    skip: bool,
    planar: bool,
    kernel_device: torch.device,
) -> None:
    torch.manual_seed(inputs)
    image = torch.randn(2, inputs, 11, 37).to(kernel_device)
    weight = torch.randn(outputs, inputs, 3, 3).to(kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv2d(image, weight, bias, padding=dilation, dilation=dilation)
    expected = expected.relu() if relu else expected
    extra = torch.randn_like(expected) if skip else None
    matrices = strips.pack(packed_weight(weight), bias, 1)
    other = None if extra is None else extra[:, :, None]
    result = strips.conv(image[:, :, None], matrices, dilation=dilation, relu=relu, skip=other, planar=planar)
    assert result.is_contiguous() == planar
    expected = expected if extra is None else expected + extra
    torch.testing.assert_close(result[:, :, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "inputs, outputs, planes", [(4, 8, 6), (8, 1, 6), (8, 8, 12), (16, 1, 5), (24, 4, 3)]
)
@pytest.mark.parametrize("skip", ["none", "own", "of all planes"])
def test_of_volumes(inputs: int, outputs: int, planes: int, skip: str, kernel_device: torch.device) -> None:
    torch.manual_seed(inputs)
    volume = torch.randn(2, inputs, planes, 9, 14).to(kernel_device)
    weight = torch.randn(outputs, inputs, 3, 3, 3).to(kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv3d(volume, weight, bias, padding=1).relu()
    extra = torch.randn_like(expected if skip == "own" else expected[:, :, :1])
    matrices = strips.pack(packed_weight(weight), bias, planes)
    result = strips.conv(volume, matrices, skip=None if skip == "none" else extra)
    expected = expected if skip == "none" else expected + extra
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
