"""Weighing the source views' volumes in training: the kernels of ops/view_weight.py.

The view-weight network works on every voxel by itself, except for the statistics of its two batch norms. So
its hidden values are never written: every pass reads the volume (4 or 8 numbers per voxel) and computes the
16 and 8 hidden values again. Forwards one pass for each batch norm, one for the weights, one for the weighted
mean; backwards one pass for the output layer, one for the second and one for the first hidden layer.

Shapes: S source views, B samples, D bins, N pixels, G groups; B D N G < 2^31. Hidden layers are 16 wide; the
second one has 8 values and zeros behind them, because matrix products need 16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from gbinet.ops import TINY
from gbinet.ops.norm_triton import PROGRAMS, finish_statistics

WIDTH = 16
BLOCK = 128


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
def layer(inputs, weight, mean, rstd, gamma, beta, PRECISION: tl.constexpr):
    """One hidden layer before its ReLU: the normalised values and what the ReLU sees."""
    normal = (tl.dot(inputs, weight, input_precision=PRECISION) - mean) * rstd
    return normal, normal * gamma + beta


@triton.jit
def both_layers(x, matrix1, matrix2, statistics, vectors, view, views, PRECISION: tl.constexpr):
    """Normalised values and what the ReLU sees, of the first and of the second hidden layer."""
    normal1, z1 = layer(
        x, matrix1, vector(statistics, view), vector(statistics, views + view),
        vector(vectors, 0), vector(vectors, 1), PRECISION,
    )  # fmt: skip
    normal2, z2 = layer(
        relu(z1).to(x.dtype), matrix2,
        vector(statistics, 2 * views + view), vector(statistics, 3 * views + view),
        vector(vectors, 2), vector(vectors, 3), PRECISION,
    )  # fmt: skip
    return normal1, z1, normal2, z2


@triton.jit
def relu(values):
    return tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _statistics_kernel(
    values,  # [S, R, G], R = B D N
    weight1,  # [16, 16]: inputs x hidden
    weight2,  # [16, 16]
    vectors,  # [5, 16]: gamma and beta of both batch norms, weights of the output
    mean1,  # [S, 16]; not read for the first layer
    rstd1,
    shift,  # [W]: running mean of the layer
    partial,  # [S, P, 2, 16]
    rows,
    G: tl.constexpr,
    W: tl.constexpr,  # width of the layer
    SECOND: tl.constexpr,  # of the second layer's values instead of the first's
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    view = tl.program_id(1)
    channel = tl.arange(0, 16)
    base = values + view.to(tl.int64) * rows * G
    matrix1 = matrix(weight1)
    about = tl.load(shift + channel, mask=channel < W, other=0.0)[None, :]
    total = tl.zeros((16,), dtype=tl.float32)
    squares = tl.zeros((16,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        keep = row < rows
        x = rows_of(base, row, keep, G)
        if SECOND:
            _, z = layer(
                x, matrix1, vector(mean1, view), vector(rstd1, view),
                vector(vectors, 0), vector(vectors, 1), PRECISION,
            )  # fmt: skip
            y = tl.dot(relu(z).to(x.dtype), matrix(weight2), input_precision=PRECISION)
        else:
            y = tl.dot(x, matrix1, input_precision=PRECISION)
        y = tl.where(keep[:, None], y - about, 0.0)
        total += tl.sum(y, axis=0)
        squares += tl.sum(y * y, axis=0)
    into = partial + (view * tl.num_programs(0) + tl.program_id(0)) * 32 + channel
    tl.store(into, total)
    tl.store(into + 16, squares)


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
    matrix1 = matrix(weight1)
    matrix2 = matrix(weight2)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    choice = tl.zeros((BLOCK,), dtype=tl.int32)
    for d in range(bins):
        row = pixel + (pixel // pixels * (bins - 1) + d) * pixels
        x = rows_of(base, row, keep, G)
        _, _, _, z2 = both_layers(x, matrix1, matrix2, statistics, vectors, view, views, PRECISION)
        score = tl.sum(relu(z2) * vector(vectors, 4), axis=1) + tl.load(bias)
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
    shape = {"G": groups, "BLOCK": BLOCK, "PRECISION": precision(volumes)}
    programs = min(triton.cdiv(rows, BLOCK), PROGRAMS)
    partial = vectors.new_empty(views, programs, 2, WIDTH)
    statistics: list[Tensor] = []
    for norm in norms:
        before = statistics or [vectors, vectors]
        assert norm.running_mean is not None and norm.running_var is not None
        assert norm.momentum is not None
        _statistics_kernel[(programs, views)](
            volumes, matrix1, matrix2, vectors, *before, norm.running_mean, partial, rows,
            W=norm.num_features, SECOND=bool(statistics), **shape,
        )  # fmt: skip
        statistics += finish_statistics(
            partial, rows, WIDTH, norm.running_mean, norm.running_var, norm.momentum, norm.eps
        )
    numbers = torch.stack(statistics)  # [4, S, 16]
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
    return output, volumes, matrix1, matrix2, vectors, numbers, weights, choices


def precision(values: Tensor) -> str:
    return "ieee" if values.dtype == torch.float32 else "tf32"  # only float32 looks at it
