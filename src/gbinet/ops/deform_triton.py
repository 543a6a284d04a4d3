"""Deformable 3x3 convolution in one pass: samples are never written to memory. Kernels of ops/deform.py."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.bilinear_triton import corner, sample, split
from gbinet.ops.deform import taps_of
from gbinet.ops.launch_triton import dot_precision, dot_size

TAPS = 9
_FORWARD_BLOCK, _FORWARD_WARPS = 64, 4  # of inference
_BACKWARD_PROGRAMS = 512  # at most, of each tap


@triton.jit
def _position(offsets, pixel, y, x, tap, keep, height, width, PLANAR: tl.constexpr = False):
    """Row and column of the upper left neighbour of a pixel's sample, and the fractions towards the lower
    right one. `pixel` counts over the whole batch, y and x in its image."""
    if PLANAR:  # [B, 18, H, W]
        step = height * width
        first = offsets + pixel + pixel // step * 17 * step
    else:  # [B, H, W, 18]
        step = 1
        first = offsets + pixel * 18
    dy = tl.load(first + 2 * tap * step, mask=keep, other=0.0).to(tl.float32)
    dx = tl.load(first + (2 * tap + 1) * step, mask=keep, other=0.0).to(tl.float32)
    row = (y + tap // 3 - 1).to(tl.float32) + dy
    column = (x + tap % 3 - 1).to(tl.float32) + dx
    return split(row, column, height, width)


@triton.jit
def _forward_kernel(
    features,  # [B, H, W, C]
    offsets,  # [B, H, W, 18]
    weights,  # [9, C, O]
    output,  # [B, H, W, O]
    pixels,
    height,
    width,
    C: tl.constexpr,
    CP: tl.constexpr,
    O: tl.constexpr,  # noqa: E741  # the letter of the shapes above
    OP: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    PLANAR: tl.constexpr = False,  # offsets are [B, 18, H, W]
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < pixels
    channel = tl.arange(0, CP)
    out = tl.arange(0, OP)
    image = (pixel // (height * width) * (height * width) * C)[:, None]
    y = pixel % (height * width) // width
    x = pixel % width
    total = tl.zeros((BLOCK, OP), dtype=tl.float32)
    for tap in range(9):
        top, left, fy, fx = _position(offsets, pixel, y, x, tap, keep, height, width, PLANAR)
        sampled = sample(features + image, top, left, fy, fx, channel, keep, height, width, C)
        matrix = tl.load(
            weights + (tap * C + channel)[:, None] * O + out[None, :],
            mask=(channel < C)[:, None] & (out < O)[None, :],
            other=0.0,
        )
        total += tl.dot(sampled.to(matrix.dtype), matrix, input_precision=PRECISION)
    pointers = output + pixel[:, None] * O + out[None, :]
    tl.store(pointers, total.to(output.dtype.element_ty), mask=keep[:, None] & (out < O)[None, :])


@triton.jit
def _corner_of(image, row, column, channel, keep, height, width, C: tl.constexpr):
    """Where some pixels' channels are in an image [H, W, C], which exist, and values; [BLOCK, CP] each."""
    at, exist = corner(0, row, column, channel, keep, height, width, C)
    return at, exist, tl.load(image + at, mask=exist, other=0.0).to(tl.float32)


@triton.jit
def _backward_kernel(
    features,  # [B, H, W, C]
    offsets,  # [B, H, W, 18]
    weights,  # [9, C, O]
    grad_output,  # [B, H, W, O]
    grad_features,  # [B, H, W, C] float32, zeros
    grad_offsets,  # [B, H, W, 18]
    grad_weights,  # [9, C, O] float32, zeros
    lines,  # B H
    height,
    width,
    C: tl.constexpr,
    CP: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    OP: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tap; blocks of a line's pixels in strides of the number of programs. Programs of all taps work on
    the same pixels at a time, so that what they share comes from the cache."""
    tap = tl.program_id(0)
    channel = tl.arange(0, CP)
    out = tl.arange(0, OP)
    matrix = tl.load(  # transposed: [OP, CP]
        weights + (tap * C + channel)[None, :] * O + out[:, None],
        mask=(channel < C)[None, :] & (out < O)[:, None],
        other=0.0,
    )
    total = tl.zeros((CP, OP), dtype=tl.float32)
    parts = tl.cdiv(width, BLOCK)
    for block in range(tl.program_id(1), lines * parts, tl.num_programs(1)):
        line = block // parts
        x = block % parts * BLOCK + tl.arange(0, BLOCK)
        keep = x < width
        pixel = line * width + x
        image = line // height * height * width * C
        upstream = tl.load(
            grad_output + pixel[:, None] * O + out[None, :],
            mask=keep[:, None] & (out < O)[None, :],
            other=0.0,
        )
        grad = tl.dot(upstream, matrix, input_precision=PRECISION)  # [BLOCK, CP] of samples
        top, left, fy, fx = _position(offsets, pixel, line % height, x, tap, keep, height, width)
        at00, in00, v00 = _corner_of(features + image, top, left, channel, keep, height, width, C)
        at01, in01, v01 = _corner_of(features + image, top, left + 1, channel, keep, height, width, C)
        at10, in10, v10 = _corner_of(features + image, top + 1, left, channel, keep, height, width, C)
        at11, in11, v11 = _corner_of(features + image, top + 1, left + 1, channel, keep, height, width, C)
        gy = fy[:, None]
        gx = fx[:, None]
        upper = v00 + (v01 - v00) * gx
        lower = v10 + (v11 - v10) * gx
        grad_y = tl.sum(grad * (lower - upper), axis=1)
        grad_x = tl.sum(grad * ((v01 - v00) * (1 - gy) + (v11 - v10) * gy), axis=1)
        kind = grad_offsets.dtype.element_ty
        tl.store(grad_offsets + pixel * 18 + 2 * tap, grad_y.to(kind), mask=keep)
        tl.store(grad_offsets + pixel * 18 + 2 * tap + 1, grad_x.to(kind), mask=keep)
        sampled = (upper + (lower - upper) * gy).to(upstream.dtype)
        total += tl.dot(tl.trans(sampled), upstream, input_precision=PRECISION)
        into = grad_features + image
        below = grad * gy
        above = grad - below
        tl.atomic_add(into + at00, above - above * gx, mask=in00, sem="relaxed")
        tl.atomic_add(into + at01, above * gx, mask=in01, sem="relaxed")
        tl.atomic_add(into + at10, below - below * gx, mask=in10, sem="relaxed")
        tl.atomic_add(into + at11, below * gx, mask=in11, sem="relaxed")
    pointers = grad_weights + (tap * C + channel)[:, None] * O + out[None, :]
    tl.atomic_add(pointers, total, mask=(channel < C)[:, None] & (out < O)[None, :], sem="relaxed")


class SampledConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
        features_last = features.permute(0, 2, 3, 1).contiguous()  # [B, H, W, C]; no copy if channels-last
        offsets_last = offsets.permute(0, 2, 3, 1).contiguous()  # [B, H, W, 18]
        taps = taps_of(weight.to(features.dtype))
        batch, height, width, _ = features_last.shape
        # Feature maps differ little between neighbouring hypotheses: autocast must not round them.
        dtype = torch.float32 if torch.is_autocast_enabled(features.device.type) else features.dtype
        output = features_last.new_empty(batch, height, width, weight.shape[0], dtype=dtype)
        pixels, block = batch * height * width, 64
        _forward_kernel[(triton.cdiv(pixels, block),)](
            features_last, offsets_last, taps, output, pixels, height, width, **_sizes(taps, block),
            num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(features_last, offsets_last, taps)
        ctx.weight_type = weight.dtype
        return output.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, offsets, taps = ctx.saved_tensors
        upstream = grad_output.permute(0, 2, 3, 1).to(features.dtype).contiguous()
        batch, height, width, _ = features.shape
        grad_features = torch.zeros_like(features, dtype=torch.float32)
        grad_offsets = torch.empty_like(offsets)
        grad_taps = torch.zeros_like(taps, dtype=torch.float32)
        block = min(64, max(16, 1024 // triton.next_power_of_2(features.shape[3])))
        lines = batch * height
        programs = min(triton.cdiv(width, block) * lines, _BACKWARD_PROGRAMS)
        _backward_kernel[(TAPS, programs)](
            features, offsets, taps, upstream, grad_features, grad_offsets, grad_taps, lines, height, width,
            **_sizes(taps, block), num_stages=1,
        )  # fmt: skip
        grad_weight = grad_taps.reshape(3, 3, *taps.shape[1:]).permute(3, 2, 0, 1).to(ctx.weight_type)
        grad_features = grad_features.to(features.dtype)
        return grad_features.permute(0, 3, 1, 2), grad_offsets.permute(0, 3, 1, 2), grad_weight


def forward_into(features: Tensor, offsets: Tensor, taps: Tensor, output: Tensor) -> None:
    """Into memory that is given: features [B, C, H, W] and output [B, O, H, W] channels last, offsets
    [B, 18, H, W] contiguous. Threads of neighbouring pixels then read neighbouring offsets."""
    features, output = features.permute(0, 2, 3, 1), output.permute(0, 2, 3, 1)
    if not (features.is_contiguous() and offsets.is_contiguous() and output.is_contiguous()):
        raise ValueError("features and output must be channels last, offsets contiguous")
    batch, height, width, _ = features.shape
    pixels = batch * height * width
    _forward_kernel[(triton.cdiv(pixels, _FORWARD_BLOCK),)](
        features, offsets, taps, output, pixels, height, width, PLANAR=True, **_sizes(taps, _FORWARD_BLOCK),
        num_warps=_FORWARD_WARPS, num_stages=1,
    )  # fmt: skip


def _sizes(taps: Tensor, block: int) -> dict[str, int | str]:
    channels, outputs = taps.shape[1:]  # [9, C, O]
    return {
        "C": channels,
        "CP": dot_size(channels),
        "O": outputs,
        "OP": dot_size(outputs),
        "BLOCK": block,
        "PRECISION": dot_precision(taps.dtype),
    }
