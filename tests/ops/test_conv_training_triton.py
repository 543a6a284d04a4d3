"""Convolutions in training by the kernels equal torch's, forwards and backwards."""

import pytest
import torch
from torch import nn

from gbinet.ops import conv_training

weights_kernel = pytest.importorskip("gbinet.ops.conv_weight_triton", exc_type=ImportError)
Layer = nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d


def agree(layer: Layer, shape: tuple[int, ...], device: torch.device) -> None:
    """The kernels' results and gradients, in half precision, with those of torch in float32."""
    torch.manual_seed(0)
    layer = layer.to(device)
    layer.weight.data = layer.weight.data.half().float()  # numbers that half precision has too
    x = torch.randn(shape).half().to(device).requires_grad_()
    assert conv_training.suits(x, layer)
    transposed = isinstance(layer, nn.ConvTranspose3d)
    result = conv_training.conv_transpose(x, layer) if transposed else conv_training.conv(x, layer)
    exact = x.detach().float().requires_grad_()
    expected = layer(exact)
    assert result.dtype == torch.float16 and result.shape == expected.shape
    upstream = torch.randn(expected.shape).half().to(device)
    parameters = list(layer.parameters())
    gradients = torch.autograd.grad(result, [x, *parameters], upstream)
    references = torch.autograd.grad(expected, [exact, *parameters], upstream.float())
    for value, reference in zip((result, *gradients), (expected, *references), strict=True):
        assert value.shape == reference.shape
        scale = float(reference.detach().abs().max())
        torch.testing.assert_close(value.float(), reference, rtol=2e-3, atol=1e-3 * scale)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "inputs, outputs, dilation, bias, size",
    [
        (3, 8, 1, False, (5, 70)),
        (16, 18, 1, True, (9, 11)),
        (22, 16, 2, False, (9, 66)),
        (5, 1, 4, True, (11, 9)),
    ],
)
def test_of_images(
    inputs: int, outputs: int, dilation: int, bias: bool, size: tuple[int, int], kernel_device: torch.device
) -> None:
    layer = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=bias)
    agree(layer, (2, inputs, *size), kernel_device)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("inputs, outputs, planes", [(4, 8, 6), (8, 1, 6), (16, 16, 5)])
def test_of_volumes(inputs: int, outputs: int, planes: int, kernel_device: torch.device) -> None:
    agree(nn.Conv3d(inputs, outputs, 3, padding=1, bias=False), (2, inputs, planes, 5, 9), kernel_device)


@pytest.mark.usefixtures("fast")
def test_stride_two(kernel_device: torch.device) -> None:
    agree(nn.Conv3d(8, 16, 3, (1, 2, 2), padding=1, bias=False), (2, 8, 3, 6, 10), kernel_device)


@pytest.mark.usefixtures("fast")
def test_transposed_convolution(kernel_device: torch.device) -> None:
    layer = nn.ConvTranspose3d(16, 8, 3, (1, 2, 2), padding=1, output_padding=(0, 1, 1), bias=False)
    agree(layer, (2, 16, 3, 4, 6), kernel_device)


def test_of_long_strips(monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device) -> None:
    monkeypatch.setattr(weights_kernel, "_PROGRAMS", 4)
    torch.manual_seed(0)
    fine, coarse = torch.randn(2, 4, 1, 23, 70).half(), torch.randn(2, 3, 1, 23, 70).half()
    taps, sums = weights_kernel.weight_gradient(fine.to(kernel_device), coarse.to(kernel_device), 1)
    expected = torch.nn.grad.conv2d_weight(
        fine[:, :, 0].float(), (3, 4, 3, 3), coarse[:, :, 0].float(), padding=1
    )
    torch.testing.assert_close(taps[:, :, 0].transpose(0, 1).cpu(), expected, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(sums.cpu(), coarse.float().sum((0, 2, 3, 4)), rtol=1e-3, atol=1e-2)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv3d(8, 8, 3, padding=2, dilation=2),
        nn.Conv3d(8, 8, 3, padding=(0, 1, 1)),
        nn.Conv3d(8, 8, 3, (1, 2, 2), padding=(1, 2, 2), dilation=(1, 2, 2), bias=False),
        nn.Conv2d(8, 8, 3, padding=(0, 1)),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(8, 8, 5, padding=2),
        nn.ConvTranspose3d(8, 8, 3, padding=1, bias=False),
    ],
)
def test_other_layers_stay_with_torch(layer: Layer, kernel_device: torch.device) -> None:
    x = torch.zeros(1, 8, *(4,) * (layer.weight.dim() - 2)).half().to(kernel_device)
    assert not conv_training.suits(x, layer.to(kernel_device))


def test_autocast_chooses_the_type(fast: None, kernel_device: torch.device) -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1).to(kernel_device)
    x = torch.randn(1, 4, 5, 5, device=kernel_device)
    assert not conv_training.suits(x, layer)  # float32 stays with torch
    with torch.autocast(kernel_device.type, torch.float16):
        assert conv_training.suits(x, layer)
        result = conv_training.conv(x, layer)
    assert result.dtype == torch.float16
    torch.testing.assert_close(result.float(), layer(x), rtol=1e-2, atol=1e-2)
    with torch.no_grad():
        assert not conv_training.suits(x.half(), layer)
