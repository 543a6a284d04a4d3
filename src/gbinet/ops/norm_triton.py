"""Batch norm and ReLU in one, for training, channels last. The kernels of ops/norm.py.

Forwards one pass for the statistics and one that writes the result; backwards one pass for the sums and one
that writes the gradient. torch's kernels for 3D batch norm in this layout are much slower.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.layout import channels_last

PROGRAMS = 512  # at most so many partial sums
BLOCK = 4096  # numbers of a block: lines of LANES numbers, of one or more voxels
LANES = 64

# All kernels see lines of LANES numbers whatever the number of channels: compiling takes longer than training
# steps do, so one kernel has to serve all layers. Lane i belongs to channel i % channels. Sums are kept for
# every number of a block and added up once, behind the loop: adding threads up takes longer than reading.


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
    sums = tl.zeros((BLOCK, LANES), dtype=tl.float32)
    squares = tl.zeros((BLOCK, LANES), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, BLOCK * LANES), tl.num_programs(0)):
        at, keep = _line(block, total, LANES, BLOCK)
        x = tl.where(keep, tl.load(values + at, mask=keep, other=0.0).to(tl.float32) - about, 0.0)
        sums += x
        squares += x * x
    into = partial + tl.program_id(0) * 2 * LANES + lane
    tl.store(into, tl.sum(sums, axis=0))
    tl.store(into + LANES, tl.sum(squares, axis=0))


@triton.jit
def _per_channel(partial, programs, period, LANES: tl.constexpr, P: tl.constexpr):
    """One of two kinds of sums, [programs, 2, LANES] -> [LANES]: over the programs and over the lanes that
    are `period` apart; zero from there on."""
    lane = tl.arange(0, LANES)
    total = tl.zeros((P, LANES), dtype=tl.float32)
    for start in range(0, programs, P):
        program = start + tl.arange(0, P)
        at = partial + (program * 2 * LANES)[:, None] + lane[None, :]
        total += tl.load(at, mask=(program < programs)[:, None], other=0.0)
    same = (lane % period)[:, None] == lane[None, :]
    return tl.sum(tl.where(same, tl.sum(total, axis=0)[:, None], 0.0), axis=0)


@triton.jit(do_not_specialize=["calls", "programs", "rows", "channels", "period"])
def _finish_kernel(
    partial,  # [S, P, 2, LANES] float32: sums and sums of squares of S calls, about the running mean
    running_mean,  # [C]; updated once per call, in order
    running_var,
    counter,  # of the calls so far, int64; updated
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
    shift = tl.load(running_mean + lane, mask=real, other=0.0)
    average = shift
    spread = tl.load(running_var + lane, mask=real, other=0.0)
    count = rows * 1.0
    for call in range(calls):
        own = partial + call * programs * 2 * LANES
        first = _per_channel(own, programs, period, LANES, P) / count
        second = _per_channel(own + LANES, programs, period, LANES, P) / count
        variance = tl.maximum(second - first * first, 0.0)
        tl.store(mean + call * LANES + lane, shift + first)
        tl.store(rstd + call * LANES + lane, tl.where(real, 1 / tl.sqrt(variance + eps), 0.0))
        average += momentum * (shift + first - average)
        spread += momentum * (variance * (count / tl.maximum(count - 1, 1.0)) - spread)
    tl.store(running_mean + lane, average, mask=real)
    tl.store(running_var + lane, spread, mask=real)
    tl.store(counter, tl.load(counter) + calls)


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
    sums = tl.zeros((BLOCK, LANES), dtype=tl.float32)
    products = tl.zeros((BLOCK, LANES), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, BLOCK * LANES), tl.num_programs(0)):
        at, keep = _line(block, total, LANES, BLOCK)
        normal = (tl.load(values + at, mask=keep, other=0.0).to(tl.float32) - centre) * scale
        grad = tl.load(upstream + at, mask=keep, other=0.0).to(tl.float32)
        grad = tl.where(normal * slope + offset > 0, grad, 0.0)
        sums += grad
        products += grad * normal
    into = partial + tl.program_id(0) * 2 * LANES + lane
    tl.store(into, tl.sum(sums, axis=0))
    tl.store(into + LANES, tl.sum(products, axis=0))


@triton.jit(do_not_specialize=["programs", "channels"])
def _add_up_kernel(
    partial,  # [P, 2, LANES]
    sums,  # [2, C]
    programs,
    channels,
    LANES: tl.constexpr,
    P: tl.constexpr,
):
    kind = tl.program_id(0)
    lane = tl.arange(0, LANES)
    total = _per_channel(partial + kind * LANES, programs, channels, LANES, P)
    tl.store(sums + kind * channels + lane, total, mask=lane < channels)


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
        """values [B, C, ...] channels last; norm: running mean, variance and number of calls (updated),
        momentum, eps."""
        total, channels, shape = _sizes(values)
        blocks = triton.cdiv(total, BLOCK)
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
        blocks = triton.cdiv(total, BLOCK)
        programs = min(blocks, PROGRAMS)
        partial = values.new_empty(programs, 2, shape["LANES"], dtype=torch.float32)
        inputs = (values, channels_last(upstream), mean, rstd, gamma, beta)
        _sums_kernel[(programs,)](*inputs, partial, total, channels, **shape)
        sums = partial.new_empty(2, channels)
        _add_up_kernel[(2,)](partial, sums, programs, channels, **_adding_up(shape["LANES"]))
        gradient = torch.empty_like(values)
        sizes = (total, channels, total // channels)
        _backward_kernel[(blocks,)](*inputs, sums, gradient, *sizes, **shape)
        return gradient, sums[1].to(gamma.dtype), sums[0].to(beta.dtype), None, None, None, None, None


def finish_statistics(
    partial: Tensor,  # [S, P, 2, LANES]
    rows: int,
    period: int,  # lanes this far apart belong to one channel
    running_mean: Tensor,  # [C], updated
    running_var: Tensor,  # [C], updated
    counter: Tensor,  # of the calls so far, updated
    momentum: float,
    eps: float,
) -> Tensor:
    """Mean and 1 / standard deviation of S calls of one batch norm, [2, S, LANES], in one launch."""
    calls, programs, _, lanes = partial.shape
    result = partial.new_empty(2, calls, lanes)
    _finish_kernel[(1,)](
        partial, running_mean, running_var, counter, *result.unbind(0), calls, programs, rows,
        len(running_mean), period, momentum, eps, **_adding_up(lanes),
    )  # fmt: skip
    return result


def _sizes(values: Tensor) -> tuple[int, int, dict[str, int]]:
    """Number of values, channels, and the kernels' sizes of lines and blocks."""
    channels = values.shape[1]
    lanes = max(LANES, channels)
    return values.numel(), channels, {"LANES": lanes, "BLOCK": BLOCK // lanes}


def _adding_up(lanes: int) -> dict[str, int]:
    """Sizes for one program that adds up the partial sums of the others: many at a time to hide latency."""
    return {"LANES": lanes, "P": 8192 // lanes, "num_warps": 16}
