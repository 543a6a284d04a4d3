"""Weighing the source views' volumes in training: the kernels of ops/view_weight.py.

The view-weight network works on every voxel by itself, except for the statistics of its two batch norms. So
its hidden values are never written: every pass reads the volume (4 or 8 numbers per voxel) and computes the
16 and 8 hidden values again. Forwards one pass for each batch norm, one for the weights, one for the weighted
mean; backwards one pass for the output layer and one for the volume. The second batch norm's pass also sums
the moments of the hidden values that the backward pass needs: see view_weight_backward_triton.py.

Shapes: S source views, B samples, D bins, N pixels, G groups; B D N G < 2^31. Hidden layers are 16 wide; the
second one has 8 values and zeros behind them, because matrix products need 16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from gbinet.ops import TINY
from gbinet.ops.launch_triton import dot_precision
from gbinet.ops.norm_triton import PROGRAMS, finish_statistics

WIDTH = 16
BLOCK = 128
SMALL_BLOCK = 64  # where many sums are kept: twice as many programs have room for their registers
# Rows of the moments, sums over all voxels. A hidden value h = max(z, 0) of the first layer is alive where
# z > 0, and n is what its batch norm makes of it before slope and offset, or 0 where it is not alive.
# alive (1 row), n (1), h of all x alive of all (16), h of all x n of all (16)
MOMENTS = 2 + 2 * WIDTH


@triton.jit
def rows_of(values, row, keep, G: tl.constexpr):
    """Volume at some voxels, [BLOCK, 16]: G values and zeros."""
    channel = tl.arange(0, 16)
    mask = keep[:, None] & (channel < G)[None, :]
    return tl.load(values + row[:, None] * G + channel[None, :], mask=mask, other=0.0)


@triton.jit
def matrix(pointer):
    index = tl.arange(0, 16)
    return tl.load(pointer + index[:, None] * 16 + index[None, :])


@triton.jit
def vector(pointer, number):
    return tl.load(pointer + number * 16 + tl.arange(0, 16))[None, :]


@triton.jit
def batch_norm(statistics, vectors, number: tl.constexpr, view, views):
    """The first (0) or second (1) one as mean, 1 / standard deviation, slope and offset, [1, 16] each:
    it makes y * slope + offset of y."""
    mean = vector(statistics, 2 * number * views + view)
    rstd = vector(statistics, (2 * number + 1) * views + view)
    slope = rstd * vector(vectors, 2 * number)
    return mean, rstd, slope, vector(vectors, 2 * number + 1) - mean * slope


@triton.jit
def relu(values):
    return tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _first_statistics_kernel(
    values,  # [S, R, G], R = B D N
    weight1,  # [16, 16]: inputs x hidden
    shift,  # [16]: running mean
    partial,  # [S, P, 2, 16]
    rows,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    view = tl.program_id(1)
    channel = tl.arange(0, 16)
    base = values + view.to(tl.int64) * rows * G
    matrix1 = matrix(weight1)
    about = vector(shift, 0)
    total = tl.zeros((BLOCK, 16), dtype=tl.float32)
    squares = tl.zeros((BLOCK, 16), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        keep = row < rows
        y = tl.dot(rows_of(base, row, keep, G), matrix1, input_precision=PRECISION)
        y = tl.where(keep[:, None], y - about, 0.0)
        total += y
        squares += y * y
    into = partial + (view * tl.num_programs(0) + tl.program_id(0)) * 32 + channel
    tl.store(into, tl.sum(total, axis=0))
    tl.store(into + 16, tl.sum(squares, axis=0))


@triton.jit(do_not_specialize=["views"])
def _second_statistics_kernel(
    values,  # [S, R, G], R = B D N
    weight1,  # [16, 16]: inputs x hidden
    weight2,  # [16, 16]
    vectors,  # [5, 16]: gamma and beta of both batch norms, weights of the output
    statistics,  # [2, S, 16]: mean and rstd of the first layer
    shift,  # [8]: running mean
    partial,  # [S, P, 2, 16]
    moments,  # [S, P, 34, 16]: see MOMENTS
    rows,
    views,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    view = tl.program_id(1)
    channel = tl.arange(0, 16)
    base = values + view.to(tl.int64) * rows * G
    matrix1 = matrix(weight1)
    matrix2 = matrix(weight2)
    mean, rstd, slope, offset = batch_norm(statistics, vectors, 0, view, views)
    about = tl.load(shift + channel, mask=channel < 8, other=0.0)[None, :]
    total = tl.zeros((BLOCK, 16), dtype=tl.float32)
    squares = tl.zeros((BLOCK, 16), dtype=tl.float32)
    lives = tl.zeros((BLOCK, 16), dtype=tl.float32)
    normals = tl.zeros((BLOCK, 16), dtype=tl.float32)
    hidden_lives = tl.zeros((16, 16), dtype=tl.float32)
    hidden_normals = tl.zeros((16, 16), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        keep = row < rows
        x = rows_of(base, row, keep, G)
        y1 = tl.dot(x, matrix1, input_precision=PRECISION)
        z1 = y1 * slope + offset
        hidden = relu(z1).to(x.dtype)
        y = tl.dot(hidden, matrix2, input_precision=PRECISION)
        y = tl.where(keep[:, None], y - about, 0.0)
        total += y
        squares += y * y
        live = tl.where((z1 > 0) & keep[:, None], 1.0, 0.0)
        normal = (y1 * rstd - mean * rstd) * live
        lives += live
        normals += normal
        turned = tl.trans(hidden)
        hidden_lives += tl.dot(turned, live.to(x.dtype), input_precision=PRECISION)
        hidden_normals += tl.dot(turned, normal.to(x.dtype), input_precision=PRECISION)
    program = view * tl.num_programs(0) + tl.program_id(0)
    into = partial + program * 32 + channel
    tl.store(into, tl.sum(total, axis=0))
    tl.store(into + 16, tl.sum(squares, axis=0))
    into = moments + program * 34 * 16 + channel
    tl.store(into, tl.sum(lives, axis=0))
    tl.store(into + 16, tl.sum(normals, axis=0))
    square = into[None, :] + 32 + channel[:, None] * 16
    tl.store(square, hidden_lives)
    tl.store(square + 256, hidden_normals)


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def _weights_kernel(
    values,  # [S, B, D, N, G]
    weight1,
    weight2,
    vectors,
    bias,  # [1] of the output
    statistics,  # [4, S, 16]: mean and rstd of both layers
    weights,  # [S, B, N] float32
    choices,  # [S, B, N] int8: the bin that the weight comes from
    batch,
    bins,
    pixels,
    views,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    view = tl.program_id(1)
    rows = batch * bins * pixels
    base = values + view.to(tl.int64) * rows * G
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of the whole batch
    keep = pixel < batch * pixels
    first = pixel + pixel // pixels * (bins - 1) * pixels  # the pixel's row in bin 0
    matrix1 = matrix(weight1)
    matrix2 = matrix(weight2)
    _, _, slope1, offset1 = batch_norm(statistics, vectors, 0, view, views)
    _, _, slope2, offset2 = batch_norm(statistics, vectors, 1, view, views)
    weight3 = vector(vectors, 4)
    bias3 = tl.load(bias)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    choice = tl.zeros((BLOCK,), dtype=tl.int32)
    for d in range(bins):
        x = rows_of(base, first + d * pixels, keep, G)
        z1 = tl.dot(x, matrix1, input_precision=PRECISION) * slope1 + offset1
        z2 = tl.dot(relu(z1).to(x.dtype), matrix2, input_precision=PRECISION) * slope2 + offset2
        score = tl.sum(relu(z2) * weight3, axis=1) + bias3
        better = (score > best) | (score != score)  # not a number stays
        best = tl.where(better, score, best)
        choice = tl.where(better, d, choice)
    into = view.to(tl.int64) * batch * pixels + pixel
    tl.store(weights + into, tl.sigmoid(best), mask=keep)
    tl.store(choices + into, choice.to(tl.int8), mask=keep)


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def _fuse_kernel(
    values,  # [S, B, D, N, G]
    weights,  # [S, B, N]
    output,  # [B, D, N, G]
    batch,
    bins,
    pixels,
    views,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    TINY: tl.constexpr,
):
    """The mean over the views, weighted per pixel."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = batch * bins * pixels
    keep = row < rows
    pixel = row // (bins * pixels) * pixels + row % pixels
    group = tl.arange(0, G)
    at = row[:, None] * G + group[None, :]
    total = tl.zeros((BLOCK, G), dtype=tl.float32)
    trust = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(views):
        weight = tl.load(weights + pixel, mask=keep, other=0.0)
        x = tl.load(values + at, mask=keep[:, None], other=0.0).to(tl.float32)
        total += x * weight[:, None]
        trust += weight
        weights += batch * pixels
        values += rows.to(tl.int64) * G
    result = total / tl.maximum(trust, TINY)[:, None]
    tl.store(output + at, result.to(output.dtype.element_ty), mask=keep[:, None])


Saved = tuple[Tensor, ...]  # what `forward` leaves for `backward`


def forward(
    volumes: Tensor,  # [S, B, D, N, G]
    matrix1: Tensor,  # [16, 16] inputs x hidden, in the volumes' type
    matrix2: Tensor,
    vectors: Tensor,  # [5, 16] float32: gamma and beta of both batch norms, weights of the output
    bias: Tensor,  # [1] of the output
    norms: tuple[nn.BatchNorm3d, nn.BatchNorm3d],  # their running statistics are updated
) -> Saved:
    """The weighted mean of the views [B, D, N, G] first."""
    views, batch, bins, pixels, groups = volumes.shape
    rows = batch * bins * pixels
    shape = {"G": groups, "BLOCK": BLOCK, "PRECISION": dot_precision(volumes.dtype)}
    programs = min(triton.cdiv(rows, BLOCK), PROGRAMS)
    partial = vectors.new_empty(views, programs, 2, WIDTH)
    moments = vectors.new_empty(views, programs, MOMENTS, WIDTH)
    first, second = norms
    _first_statistics_kernel[(programs, views)](volumes, matrix1, first.running_mean, partial, rows, **shape)
    statistics = _finish(partial, rows, first)  # [2, S, 16]
    _second_statistics_kernel[(programs, views)](
        volumes, matrix1, matrix2, vectors, statistics, second.running_mean, partial, moments, rows, views,
        **shape | {"BLOCK": SMALL_BLOCK},
    )  # fmt: skip
    numbers = torch.cat([statistics, _finish(partial, rows, second)])  # [4, S, 16]
    weights = vectors.new_empty(views, batch, pixels)
    choices = torch.empty_like(weights, dtype=torch.int8)
    sizes = (batch, bins, pixels, views)
    _weights_kernel[(triton.cdiv(batch * pixels, BLOCK), views)](
        volumes, matrix1, matrix2, vectors, bias, numbers, weights, choices, *sizes, **shape
    )
    output = torch.empty_like(volumes[0])
    _fuse_kernel[(triton.cdiv(rows, BLOCK),)](
        volumes, weights, output, *sizes, G=groups, BLOCK=BLOCK, TINY=TINY
    )
    return output, volumes, matrix1, matrix2, vectors, numbers, weights, choices, moments.sum(1)


def _finish(partial: Tensor, rows: int, norm: nn.BatchNorm3d) -> Tensor:
    """Mean and 1 / standard deviation, [2, S, 16], from [S, P, 2, 16]; the running ones are updated."""
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.num_batches_tracked is not None and norm.momentum is not None
    own = (norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum, norm.eps)
    return finish_statistics(partial, rows, WIDTH, *own)
