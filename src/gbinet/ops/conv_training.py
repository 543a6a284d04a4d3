"""Convolutions of few channels in training: results and gradients by the kernels. See ops/conv.py.

3x3 and 3x3x3 taps; stride 1, stride 2 in height and width (volumes only), or the transposed convolution that
doubles both. cuDNN is slow where channels are few, above all for 8 -> 1. Weights change with every step: one
gather puts them into the order that a kernel reads.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.conv import StripWeights, packed_weight

_MOST_CHANNELS = 24


def suits(x: Tensor, layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d) -> bool:
    """Whether to use the kernels for this call."""
    if not (torch.is_grad_enabled() and layer.weight.requires_grad and ops.usable(x)):
        return False
    few = max(layer.in_channels, layer.out_channels) <= _MOST_CHANNELS and layer.groups == 1
    is_half = _compute_dtype(x).itemsize == 2
    small = x[0].numel() * 4 * _MOST_CHANNELS < 2**31  # indices are 32 bits wide
    even = x.shape[-1] % 2 == x.shape[-2] % 2 == 0
    return few and is_half and small and _has_kernels(layer, even)


def _has_kernels(layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d, even: bool) -> bool:
    """Whether there is a kernel for this layer; even: height and width of its input are."""
    stride, dilation = tuple(layer.stride), layer.dilation[-1]
    padding = (1,) * (layer.weight.dim() - 4) + (dilation, dilation)  # no dilation in depth
    if layer.padding_mode != "zeros" or set(layer.kernel_size) != {3}:
        return False
    if tuple(layer.padding) != padding or tuple(layer.dilation) != padding:
        return False
    if isinstance(layer, nn.ConvTranspose3d):
        doubles = stride == (1, 2, 2) and layer.output_padding == (0, 1, 1)
        return doubles and dilation == 1 and layer.bias is None
    if set(stride) == {1}:
        return True
    return stride == (1, 2, 2) and dilation == 1 and even and layer.bias is None


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The type that a convolution of x computes in."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def conv(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """layer(x), [B, I, (D,) H, W] -> [B, O, (D,) h, w]."""
    volume = (x[:, :, None] if x.dim() == 4 else x).to(_compute_dtype(x))
    result: Tensor
    if layer.stride[-1] == 2:
        result = _StrideTwo.apply(volume, layer.weight, False)  # type: ignore[no-untyped-call]
    else:
        result = _Convolution.apply(volume, layer.weight, layer.bias, layer.dilation[-1])  # type: ignore[no-untyped-call]
    return result[:, :, 0] if x.dim() == 4 else result


def conv_transpose(x: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """layer(x), [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]."""
    result: Tensor = _StrideTwo.apply(x.to(_compute_dtype(x)), layer.weight, True)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, volume: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
        from gbinet.ops import conv_strips_triton

        cast_weight = weight.to(volume.dtype)
        ctx.save_for_backward(volume, cast_weight)
        ctx.dilation = dilation
        ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
        matrices = _strips(cast_weight, bias, volume.shape[2], backwards=False)
        return conv_strips_triton.conv(volume, matrices, dilation=dilation, relu=False)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        from gbinet.ops import conv_strips_triton, conv_weight_triton

        volume, cast_weight = ctx.saved_tensors
        grad_volume = None
        if ctx.needs_input_grad[0]:
            matrices = _strips(cast_weight, None, volume.shape[2], backwards=True)
            grad_volume = conv_strips_triton.conv(upstream, matrices, dilation=ctx.dilation, relu=False)
        taps, sums = conv_weight_triton.weight_gradient(
            volume, upstream, 3 if cast_weight.dim() == 5 else 1, dilation=ctx.dilation
        )
        grad_weight = taps.transpose(0, 1).reshape(cast_weight.shape).to(ctx.weight_dtype)
        grad_bias = None if ctx.bias_dtype is None else sums.to(ctx.bias_dtype)
        return grad_volume, grad_weight, grad_bias, None


class _StrideTwo(torch.autograd.Function):
    """Convolution with stride 2, or its transpose: each is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, volume: Tensor, weight: Tensor, transposed: bool) -> Tensor:
        cast_weight = weight.to(volume.dtype)
        ctx.save_for_backward(volume, cast_weight)
        ctx.weight_dtype, ctx.transposed = weight.dtype, transposed
        return _transposed(volume, cast_weight) if transposed else _strided(volume, cast_weight)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        from gbinet.ops import conv_weight_triton

        volume, cast_weight = ctx.saved_tensors
        fine, coarse = (upstream, volume) if ctx.transposed else (volume, upstream)
        taps, _ = conv_weight_triton.weight_gradient(fine, coarse, 3, stride=2)
        grad_volume = (
            _strided(upstream, cast_weight) if ctx.transposed else _transposed(upstream, cast_weight)
        )
        return grad_volume, taps.transpose(0, 1).to(ctx.weight_dtype), None


def _strided(volume: Tensor, weight: Tensor) -> Tensor:
    """Convolution with stride 2: [B, I, D, 2 H, 2 W] and weight [O, I, 3, 3, 3] -> [B, O, D, H, W]."""
    from gbinet.ops import conv_triton

    bias = _zeros(weight.shape[0], weight.device)
    return conv_triton.conv3d(volume, packed_weight(weight), bias, stride=2, relu=False)


def _transposed(volume: Tensor, weight: Tensor) -> Tensor:
    """Transposed convolution: [B, I, D, H, W] and weight [I, O, 3, 3, 3] -> [B, O, D, 2 H, 2 W]."""
    from gbinet.ops import conv_transpose_triton

    order = _order_for_transpose(tuple(weight.shape), weight.device)
    return conv_transpose_triton.conv_transpose3d(volume, _gathered(weight, order), weight.shape[1])


def _strips(weight: Tensor, bias: Tensor | None, planes: int, backwards: bool) -> StripWeights:
    """A layer as conv_strips_triton.py reads it; backwards: the one that gives its input's gradient."""
    order = _order_for_strips(tuple(weight.shape), planes, backwards, weight.device)
    weights = _gathered(weight, order.weights)
    no_bias = _zeros(len(order.bias), weight.device)
    return replace(
        order, weights=weights, bias=no_bias if bias is None else _gathered(bias.float(), order.bias)
    )


def _gathered(numbers: Tensor, order: Tensor) -> Tensor:
    """numbers.flatten()[order - 1], and zero where the order is 0."""
    return F.pad(numbers.flatten(), (1, 0))[order]


@functools.cache
def _order_for_strips(
    shape: tuple[int, ...], planes: int, backwards: bool, device: torch.device
) -> StripWeights:
    """Packed numbers 1, 2, 3, ... instead of weights: where each of the kernel's numbers comes from."""
    from gbinet.ops import conv_strips_triton

    weight = _numbered(shape, device)
    if backwards:
        weight = weight.flip(tuple(range(2, len(shape)))).transpose(0, 1)
    return conv_strips_triton.pack(packed_weight(weight), _numbered((len(weight),), device), planes)


@functools.cache
def _order_for_transpose(shape: tuple[int, ...], device: torch.device) -> Tensor:
    from gbinet.ops import conv_transpose_triton

    weight = packed_weight(_numbered(shape, device), transposed=True)
    return conv_transpose_triton.pack(weight, weight.new_zeros(weight.shape[-1]))[0]


def _numbered(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """1, 2, 3, ... in this shape."""
    return torch.arange(1, 1 + torch.Size(shape).numel(), device=device).reshape(shape)


@functools.cache
def _zeros(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, device=device)
