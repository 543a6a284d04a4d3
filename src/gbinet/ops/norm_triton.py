"""Batch norm and ReLU in one, for training, channels last. The kernels of ops/norm.py.

Forwards one pass for the statistics and one that writes the result; backwards one pass for the sums and one
that writes the gradient. torch has no kernel for 3D batch norm in this layout that comes near that.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 512  # at most so many partial sums
BLOCK = 64  # lines of a block; a line holds LANES numbers, of one or more voxels
LANES = 64

# All kernels see lines of LANES numbers whatever the number of channels: compiling takes longer than training
# steps do, so one kernel has to serve all layers. Lane i belongs to channel i % channels.


@triton.jit
def _line(block, total, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """Positions of a block's numbers, [BLOCK, LANES], and which of them exist."""
    line = tl.arange(0, BLOCK).to(tl.int64) + block * BLOCK
    at = line[:, None] * LANES + tl.arange(0, LANES)[None, :]
    return at, at < total


@triton.jit(do_not_specialize=["channels"])
def _statistics_kernel(
    values,  # [total]
    shift,  # [C]: about the mean; keeps the sum of squares from cancelling
    partial,  # [P, 2, LANES] float32
    total,
    channels,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.arange(0, LANES)
    about = tl.load(shift + lane % channels)[None, :]
    sums = tl.zeros((LANES,), dtype=tl.float32)
    squares = tl.zeros((LANES,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, BLOCK * LANES), tl.num_programs(0)):
        at, keep = _line(block, total, LANES, BLOCK)
        x = tl.where(keep, tl.load(values + at, mask=keep, other=0.0).to(tl.float32) - about, 0.0)
        sums += tl.sum(x, axis=0)
        squares += tl.sum(x * x, axis=0)
    into = partial + tl.program_id(0) * 2 * LANES + lane
    tl.store(into, sums)
    tl.store(into + LANES, squares)


@triton.jit
def _per_channel(lanes, channels, LANES: tl.constexpr):
    """Sum of the lanes of each channel; zero from `channels` on."""
    lane = tl.arange(0, LANES)
    same = (lane % channels)[:, None] == lane[None, :]
    return tl.sum(tl.where(same, lanes[:, None], 0.0), axis=0)


@triton.jit(do_not_specialize=["calls", "programs", "rows", "channels", "period"])
def _finish_kernel(
    partial,  # [S, P, 2, LANES] float32: sums and sums of squares of S calls, about the running mean
    running_mean,  # [C]; updated once per call, in order
    running_var,
    mean,  # [S, LANES]
    rstd,  # [S, LANES]: 1 / standard deviation; 0 for lanes that are no channel
    calls,
    programs,
    rows,
    channels,
    period,  # lanes this far apart belong to one channel
    momentum,
    eps,
    LANES: tl.constexpr,
    P: tl.constexpr,
):
    lane = tl.arange(0, LANES)
    real = lane < channels
    program = tl.arange(0, P)
    shift = tl.load(running_mean + lane, mask=real, other=0.0)
    average = shift
    spread = tl.load(running_var + lane, mask=real, other=0.0)
    count = rows * 1.0
    for call in range(calls):
        first = tl.zeros((LANES,), dtype=tl.float32)
        second = tl.zeros((LANES,), dtype=tl.float32)
        for start in range(0, programs, P):
            number = start + program
            at = partial + ((call * programs + number) * 2 * LANES)[:, None] + lane[None, :]
            keep = (number < programs)[:, None]
            first += tl.sum(tl.load(at, mask=keep, other=0.0), axis=0)
            second += tl.sum(tl.load(at + LANES, mask=keep, other=0.0), axis=0)
        first = _per_channel(first, period, LANES) / count
        second = _per_channel(second, period, LANES) / count
        variance = tl.maximum(second - first * first, 0.0)
        tl.store(mean + call * LANES + lane, shift + first)
        tl.store(rstd + call * LANES + lane, tl.where(real, 1 / tl.sqrt(variance + eps), 0.0))
        average += momentum * (shift + first - average)
        spread += momentum * (variance * (count / tl.maximum(count - 1, 1.0)) - spread)
    tl.store(running_mean + lane, average, mask=real)
    tl.store(running_var + lane, spread, mask=real)


@triton.jit(do_not_specialize=["channels"])
def _forward_kernel(
    values,  # [total]
    mean,  # [C]
    rstd,
    gamma,
    beta,
    output,  # [total]
    total,
    channels,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    channel = tl.arange(0, LANES) % channels
    at, keep = _line(tl.program_id(0), total, LANES, BLOCK)
    slope = tl.load(gamma + channel) * tl.load(rstd + channel)
    x = tl.load(values + at, mask=keep, other=0.0).to(tl.float32) - tl.load(mean + channel)[None, :]
    z = x * slope[None, :] + tl.load(beta + channel)[None, :]
    z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(output + at, z.to(output.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["channels"])
def _sums_kernel(
    values,  # [total]
    upstream,  # [total]
    mean,  # [C]
    rstd,
    gamma,
    beta,
    partial,  # [P, 2, LANES]: sums of the gradient before the ReLU, and of it times the normalised value
    total,
    channels,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.arange(0, LANES)
    channel = lane % channels
    centre = tl.load(mean + channel)[None, :]
    scale = tl.load(rstd + channel)[None, :]
    slope = tl.load(gamma + channel)[None, :]
    offset = tl.load(beta + channel)[None, :]
    sums = tl.zeros((LANES,), dtype=tl.float32)
    products = tl.zeros((LANES,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, BLOCK * LANES), tl.num_programs(0)):
        at, keep = _line(block, total, LANES, BLOCK)
        normal = (tl.load(values + at, mask=keep, other=0.0).to(tl.float32) - centre) * scale
        grad = tl.load(upstream + at, mask=keep, other=0.0).to(tl.float32)
        grad = tl.where(normal * slope + offset > 0, grad, 0.0)
        sums += tl.sum(grad, axis=0)
        products += tl.sum(grad * normal, axis=0)
    into = partial + tl.program_id(0) * 2 * LANES + lane
    tl.store(into, sums)
    tl.store(into + LANES, products)


@triton.jit(do_not_specialize=["channels"])
def _backward_kernel(
    values,  # [total]
    upstream,  # [total]
    mean,  # [C]
    rstd,
    gamma,
    beta,
    sums,  # [2, C] float32
    gradient,  # [total]
    total,
    channels,
    rows,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    channel = tl.arange(0, LANES) % channels
    scale = tl.load(rstd + channel)[None, :]
    slope = tl.load(gamma + channel)[None, :]
    at, keep = _line(tl.program_id(0), total, LANES, BLOCK)
    centred = tl.load(values + at, mask=keep, other=0.0).to(tl.float32) - tl.load(mean + channel)[None, :]
    normal = centred * scale
    grad = tl.load(upstream + at, mask=keep, other=0.0).to(tl.float32)
    grad = tl.where(normal * slope + tl.load(beta + channel)[None, :] > 0, grad, 0.0)
    first = tl.load(sums + channel)[None, :] / rows
    second = tl.load(sums + channels + channel)[None, :] / rows
    grad = (grad - first - normal * second) * slope * scale
    tl.store(gradient + at, grad.to(gradient.dtype.element_ty), mask=keep)


class NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, gamma: Tensor, beta: Tensor, *norm: Any) -> Tensor:
        """values [B, C, ...] channels last; norm: running mean and variance (updated), momentum, eps."""
        total, channels, shape = _sizes(values)
        blocks = triton.cdiv(total, BLOCK * shape["LANES"])
        programs = min(blocks, PROGRAMS)
        partial = values.new_empty(1, programs, 2, shape["LANES"], dtype=torch.float32)
        _statistics_kernel[(programs,)](values, norm[0], partial, total, channels, **shape)
        mean, rstd = finish_statistics(partial, total // channels, channels, *norm)
        output = torch.empty_like(values)  # keeps the layout
        _forward_kernel[(blocks,)](values, mean, rstd, gamma, beta, output, total, channels, **shape)
        ctx.save_for_backward(values, mean, rstd, gamma, beta)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        values, mean, rstd, gamma, beta = ctx.saved_tensors
        total, channels, shape = _sizes(values)
        blocks = triton.cdiv(total, BLOCK * shape["LANES"])
        programs = min(blocks, PROGRAMS)
        partial = values.new_empty(programs, 2, shape["LANES"], dtype=torch.float32)
        inputs = (values, channels_last(upstream), mean, rstd, gamma, beta)
        _sums_kernel[(programs,)](*inputs, partial, total, channels, **shape)
        sums = partial.view(programs, 2, -1, channels).sum((0, 2))  # [2, C]
        gradient = torch.empty_like(values)
        sizes = (total, channels, total // channels)
        _backward_kernel[(blocks,)](*inputs, sums, gradient, *sizes, **shape)
        return gradient, sums[1].to(gamma.dtype), sums[0].to(beta.dtype), None, None, None, None


def finish_statistics(
    partial: Tensor,  # [S, P, 2, LANES]
    rows: int,
    period: int,  # lanes this far apart belong to one channel
    running_mean: Tensor,  # [C], updated
    running_var: Tensor,  # [C], updated
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of S calls of one batch norm, [S, LANES] each, in one launch."""
    calls, programs, _, lanes = partial.shape
    mean, rstd = partial.new_empty(2, calls, lanes).unbind(0)
    _finish_kernel[(1,)](
        partial, running_mean, running_var, mean, rstd, calls, programs, rows, len(running_mean), period,
        momentum, eps, LANES=lanes, P=64,
    )  # fmt: skip
    return mean, rstd


def _sizes(values: Tensor) -> tuple[int, int, dict[str, int]]:
    """Numbers, channels, and how the kernels cut them."""
    channels = values.shape[1]
    return values.numel(), channels, {"LANES": max(LANES, channels), "BLOCK": BLOCK}


def channels_last(values: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return values.contiguous(memory_format=formats[values.dim()])
