"""Convolutions of few channels in training: results and gradients by the kernels. See ops/conv.py.

3x3 and 3x3x3 taps; along rows and columns either every pixel (stride 1), every other one (stride 2, volumes
only), or the transposed convolution that doubles both. cuDNN is slow where channels are few, above all for
8 -> 1. Weights change with every step: one look-up puts them into the order that a kernel reads.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.conv import Matrices, packed_weight

_FEW = 24  # channels


def suits(x: Tensor, layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d) -> bool:
    """Whether the kernels should serve this call."""
    if not (torch.is_grad_enabled() and layer.weight.requires_grad and ops.usable(x)):
        return False
    few = max(layer.in_channels, layer.out_channels) <= _FEW and layer.groups == 1
    half = _kind(x).itemsize == 2 and x[0].numel() * 4 * _FEW < 2**31  # indices are 32 bits wide
    even = x.shape[-1] % 2 == x.shape[-2] % 2 == 0
    return few and half and _has_kernels(layer, even)


def _has_kernels(layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d, even: bool) -> bool:
    """Whether the layer, for maps of even or odd sizes, is one of those that the kernels compute."""
    steps, apart = tuple(layer.stride), layer.dilation[-1]
    around = (1,) * (layer.weight.dim() - 4) + (apart, apart)  # depth only ever has its next planes
    if layer.padding_mode != "zeros" or set(layer.kernel_size) != {3}:
        return False
    if tuple(layer.padding) != around or tuple(layer.dilation) != around:
        return False
    if isinstance(layer, nn.ConvTranspose3d):
        return steps == (1, 2, 2) and apart == 1 and layer.output_padding == (0, 1, 1) and layer.bias is None
    if set(steps) == {1}:
        return True
    return steps == (1, 2, 2) and apart == 1 and even and layer.bias is None


def _kind(x: Tensor) -> torch.dtype:
    """The type that a convolution computes in."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def conv(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """layer(x), [B, I, (D,) H, W] -> [B, O, (D,) h, w]."""
    volume = (x[:, :, None] if x.dim() == 4 else x).to(_kind(x))
    result: Tensor
    if layer.stride[-1] == 2:
        result = _ByTwo.apply(volume, layer.weight, False)  # type: ignore[no-untyped-call]
    else:
        result = _Convolution.apply(volume, layer.weight, layer.bias, layer.dilation[-1])  # type: ignore[no-untyped-call]
    return result[:, :, 0] if x.dim() == 4 else result


def doubled(x: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """layer(x), [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]."""
    result: Tensor = _ByTwo.apply(x.to(_kind(x)), layer.weight, True)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, volume: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
        from gbinet.ops import strips_triton

        half = weight.to(volume.dtype)
        ctx.save_for_backward(volume, half)
        ctx.dilation, ctx.kinds = dilation, (weight.dtype, None if bias is None else bias.dtype)
        matrices = _strips(half, bias, volume.shape[2], backwards=False)
        return strips_triton.conv(volume, matrices, dilation=dilation, relu=False)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        from gbinet.ops import conv_weight_triton, strips_triton

        volume, half = ctx.saved_tensors
        to_volume = None
        if ctx.needs_input_grad[0]:
            matrices = _strips(half, None, volume.shape[2], backwards=True)
            to_volume = strips_triton.conv(upstream, matrices, dilation=ctx.dilation, relu=False)
        taps, sums = conv_weight_triton.weight_gradient(
            volume, upstream, 3 if half.dim() == 5 else 1, dilation=ctx.dilation
        )
        to_weight = taps.transpose(0, 1).reshape(half.shape).to(ctx.kinds[0])
        return to_volume, to_weight, None if ctx.kinds[1] is None else sums.to(ctx.kinds[1]), None


class _ByTwo(torch.autograd.Function):
    """Convolution with stride 2, or the transposed one that doubles: each is the other's way back."""

    @staticmethod
    def forward(ctx: Any, volume: Tensor, weight: Tensor, doubling: bool) -> Tensor:
        half = weight.to(volume.dtype)
        ctx.save_for_backward(volume, half)
        ctx.kind, ctx.doubling = weight.dtype, doubling
        return _all_doubled(volume, half) if doubling else _every_other(volume, half)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        from gbinet.ops import conv_weight_triton

        volume, half = ctx.saved_tensors
        fine, coarse = (upstream, volume) if ctx.doubling else (volume, upstream)
        taps, _ = conv_weight_triton.weight_gradient(fine, coarse, 3, stride=2)
        to_volume = _every_other(upstream, half) if ctx.doubling else _all_doubled(upstream, half)
        return to_volume, taps.transpose(0, 1).to(ctx.kind), None


def _every_other(volume: Tensor, weight: Tensor) -> Tensor:
    """Convolution with stride 2: [B, I, D, 2 H, 2 W] and weight [O, I, 3, 3, 3] -> [B, O, D, H, W]."""
    from gbinet.ops import conv_triton

    bias = _zeros(weight.shape[0], weight.device)
    return conv_triton.conv3d(volume, packed_weight(weight), bias, stride=2, relu=False)


def _all_doubled(volume: Tensor, weight: Tensor) -> Tensor:
    """Transposed convolution: [B, I, D, H, W] and weight [I, O, 3, 3, 3] -> [B, O, D, 2 H, 2 W]."""
    from gbinet.ops import double_triton

    order = _order_of_doubling(tuple(weight.shape), weight.device)
    return double_triton.doubled(volume, _looked_up(weight, order), weight.shape[1])


def _strips(weight: Tensor, bias: Tensor | None, planes: int, backwards: bool) -> Matrices:
    """A layer as strips_triton.py reads it; backwards: as the convolution that takes the gradient of the
    layer's result to that of its volume."""
    order = _order_of_strips(tuple(weight.shape), planes, backwards, weight.device)
    weights = _looked_up(weight, order.weights)
    none = _zeros(len(order.bias), weight.device)
    wide_bias = none if bias is None else _looked_up(bias.float(), order.bias)
    return Matrices(
        weights, wide_bias, order.inputs, order.outputs, order.planes, order.taps, order.depth_taps
    )


def _looked_up(numbers: Tensor, order: Tensor) -> Tensor:
    """The numbers with these places, counted from 1; zeros for place 0."""
    return F.pad(numbers.flatten(), (1, 0))[order]


@functools.cache
def _order_of_strips(shape: tuple[int, ...], planes: int, backwards: bool, device: torch.device) -> Matrices:
    from gbinet.ops import strips_triton

    weight = _places(shape, device)
    if backwards:
        weight = weight.flip(tuple(range(2, len(shape)))).transpose(0, 1)
    return strips_triton.pack(packed_weight(weight), _places((len(weight),), device), planes)


@functools.cache
def _order_of_doubling(shape: tuple[int, ...], device: torch.device) -> Tensor:
    from gbinet.ops import double_triton

    weight = packed_weight(_places(shape, device), transposed=True)
    return double_triton.pack(weight, weight.new_zeros(weight.shape[-1]))[0]


def _places(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """1, 2, 3, ... in this shape."""
    return torch.arange(1, 1 + torch.Size(shape).numel(), device=device).reshape(shape)


@functools.cache
def _zeros(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, device=device)
