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
def _rows(values, row, keep, G: tl.constexpr):
    """Volume at some voxels, [BLOCK, 16]: G values and zeros."""
    channel = tl.arange(0, 16)
    mask = keep[:, None] & (channel < G)[None, :]
    return tl.load(values + row[:, None] * G + channel[None, :], mask=mask, other=0.0)


@triton.jit
def _matrix(pointer):
    index = tl.arange(0, 16)
    return tl.load(pointer + index[:, None] * 16 + index[None, :])


@triton.jit
def _vector(pointer, number):
    return tl.load(pointer + number * 16 + tl.arange(0, 16))[None, :]


@triton.jit
def _layer(inputs, weight, mean, rstd, gamma, beta, PRECISION: tl.constexpr):
    """One hidden layer before its ReLU: the normalised values and what the ReLU sees."""
    normal = (tl.dot(inputs, weight, input_precision=PRECISION) - mean) * rstd
    return normal, normal * gamma + beta


@triton.jit
def _both_layers(x, matrix1, matrix2, statistics, vectors, view, views, PRECISION: tl.constexpr):
    """Normalised values and what the ReLU sees, of the first and of the second hidden layer."""
    normal1, z1 = _layer(
        x, matrix1, _vector(statistics, view), _vector(statistics, views + view),
        _vector(vectors, 0), _vector(vectors, 1), PRECISION,
    )  # fmt: skip
    normal2, z2 = _layer(
        _relu(z1).to(x.dtype), matrix2,
        _vector(statistics, 2 * views + view), _vector(statistics, 3 * views + view),
        _vector(vectors, 2), _vector(vectors, 3), PRECISION,
    )  # fmt: skip
    return normal1, z1, normal2, z2


@triton.jit
def _relu(values):
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
    matrix1 = _matrix(weight1)
    about = tl.load(shift + channel, mask=channel < W, other=0.0)[None, :]
    total = tl.zeros((16,), dtype=tl.float32)
    squares = tl.zeros((16,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        keep = row < rows
        x = _rows(base, row, keep, G)
        if SECOND:
            _, z = _layer(
                x, matrix1, _vector(mean1, view), _vector(rstd1, view),
                _vector(vectors, 0), _vector(vectors, 1), PRECISION,
            )  # fmt: skip
            y = tl.dot(_relu(z).to(x.dtype), _matrix(weight2), input_precision=PRECISION)
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
    matrix1 = _matrix(weight1)
    matrix2 = _matrix(weight2)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    choice = tl.zeros((BLOCK,), dtype=tl.int32)
    for d in range(bins):
        row = pixel + (pixel // pixels * (bins - 1) + d) * pixels
        x = _rows(base, row, keep, G)
        _, _, _, z2 = _both_layers(x, matrix1, matrix2, statistics, vectors, view, views, PRECISION)
        score = tl.sum(_relu(z2) * _vector(vectors, 4), axis=1) + tl.load(bias)
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


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def _output_backward_kernel(
    values,  # [S, B, D, N, G]
    output,  # [B, D, N, G]
    upstream,  # [B, D, N, G]
    weight1,
    weight2,
    vectors,
    statistics,
    weights,  # [S, B, N]
    choices,  # [S, B, N]
    slopes,  # [S, B, N] float32: gradient of the score in the chosen bin
    partial,  # [S, P, 4, 16]: two sums of the second batch norm, gradients of the output's weights and bias
    batch,
    bins,
    pixels,
    views,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    TINY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    view = tl.program_id(1)
    rows = batch * bins * pixels
    everywhere = batch * pixels
    base = values + view.to(tl.int64) * rows * G
    group = tl.arange(0, G)
    channel = tl.arange(0, 16)
    matrix1 = _matrix(weight1)
    matrix2 = _matrix(weight2)
    sums = tl.zeros((16,), dtype=tl.float32)
    products = tl.zeros((16,), dtype=tl.float32)
    grad_weights = tl.zeros((16,), dtype=tl.float32)
    grad_bias = tl.zeros((16,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(everywhere, BLOCK), tl.num_programs(0)):
        pixel = tl.arange(0, BLOCK) + block * BLOCK
        keep = pixel < everywhere
        first = pixel + pixel // pixels * (bins - 1) * pixels  # the pixel's row in bin 0
        change = tl.zeros((BLOCK,), dtype=tl.float32)
        for d in range(bins):
            at = (first + d * pixels)[:, None] * G + group[None, :]
            x = tl.load(base + at, mask=keep[:, None], other=0.0).to(tl.float32)
            fused = tl.load(output + at, mask=keep[:, None], other=0.0).to(tl.float32)
            grad = tl.load(upstream + at, mask=keep[:, None], other=0.0).to(tl.float32)
            change += tl.sum(grad * (x - fused), axis=1)
        trust = tl.zeros((BLOCK,), dtype=tl.float32)
        for other in range(views):
            trust += tl.load(weights + other * everywhere + pixel, mask=keep, other=1.0)
        into = view.to(tl.int64) * everywhere + pixel
        weight = tl.load(weights + into, mask=keep, other=0.0)
        choice = tl.load(choices + into, mask=keep, other=0).to(tl.int32)
        slope = change / tl.maximum(trust, TINY) * weight * (1 - weight)
        tl.store(slopes + into, slope, mask=keep)
        x = _rows(base, first + choice * pixels, keep, G)
        _, _, normal2, z2 = _both_layers(x, matrix1, matrix2, statistics, vectors, view, views, PRECISION)
        grad = tl.where(z2 > 0, slope[:, None] * _vector(vectors, 4), 0.0)
        sums += tl.sum(grad, axis=0)
        products += tl.sum(grad * normal2, axis=0)
        grad_weights += tl.sum(slope[:, None] * _relu(z2), axis=0)
        grad_bias += tl.where(channel == 0, tl.sum(slope, axis=0), 0.0)
    into = partial + (view * tl.num_programs(0) + tl.program_id(0)) * 64 + channel
    tl.store(into, sums)
    tl.store(into + 16, products)
    tl.store(into + 32, grad_weights)
    tl.store(into + 48, grad_bias)


@triton.jit
def _hidden_gradients(
    values, weight1, weight2, turned2, vectors, statistics, choices, slopes, sums2, row, keep,
    batch, bins, pixels, views, G: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """At some voxels of a view: x, the first layer's normalised and hidden values, the gradients of what the
    second layer's batch norm gives and of what the first one's gives, before its own part."""
    view = tl.program_id(1)
    rows = batch * bins * pixels
    at = view.to(tl.int64) * batch * pixels + row // (bins * pixels) * pixels + row % pixels
    chosen = tl.load(choices + at, mask=keep, other=-1) == row // pixels % bins
    slope = tl.load(slopes + at, mask=chosen, other=0.0)
    x = _rows(values + view.to(tl.int64) * rows * G, row, keep, G)
    normal1, z1, normal2, z2 = _both_layers(
        x, _matrix(weight1), _matrix(weight2), statistics, vectors, view, views, PRECISION
    )
    grad2 = tl.where(z2 > 0, slope[:, None] * _vector(vectors, 4), 0.0)
    grad2 -= _vector(sums2, 4 * view) / rows + normal2 * (_vector(sums2, 4 * view + 1) / rows)
    scale = _vector(statistics, 3 * views + view) * _vector(vectors, 2)
    grad2 = tl.where(keep[:, None], grad2 * scale, 0.0).to(x.dtype)
    grad1 = tl.dot(grad2, _matrix(turned2), input_precision=PRECISION)
    return x, normal1, _relu(z1).to(x.dtype), grad2, tl.where(z1 > 0, grad1, 0.0)


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def _second_backward_kernel(
    values,  # [S, B, D, N, G]
    weight1,  # [16, 16]: inputs x hidden
    weight2,
    turned2,  # [16, 16]: its transpose
    vectors,
    statistics,
    choices,
    slopes,
    sums2,  # [S, 4, 16]: of the second batch norm
    partial,  # [S, P, 2, 16]: sums of the first batch norm
    matrices,  # [S, P, 16, 16]: gradient of weight2 (outputs x inputs)
    batch,
    bins,
    pixels,
    views,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    channel = tl.arange(0, 16)
    rows = batch * bins * pixels
    sums = tl.zeros((16,), dtype=tl.float32)
    products = tl.zeros((16,), dtype=tl.float32)
    total = tl.zeros((16, 16), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        _, normal1, hidden, grad2, grad1 = _hidden_gradients(
            values, weight1, weight2, turned2, vectors, statistics, choices, slopes, sums2, row, row < rows,
            batch, bins, pixels, views, G, PRECISION,
        )  # fmt: skip
        sums += tl.sum(grad1, axis=0)
        products += tl.sum(grad1 * normal1, axis=0)
        total += tl.dot(tl.trans(grad2), hidden, input_precision=PRECISION)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(partial + program * 32 + channel, sums)
    tl.store(partial + program * 32 + 16 + channel, products)
    tl.store(matrices + program * 256 + channel[:, None] * 16 + channel[None, :], total)


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def _first_backward_kernel(
    values,  # [S, B, D, N, G]
    weight1,
    weight2,
    turned2,
    vectors,
    statistics,
    choices,
    slopes,
    sums2,
    turned1,  # [16, 16]: transpose of weight1
    upstream,  # [B, D, N, G]
    weights,  # [S, B, N]
    sums1,  # [S, 2, 16]: of the first batch norm
    matrices,  # [S, P, 16, 16]: gradient of weight1 (inputs x outputs)
    gradient,  # [S, B, D, N, G]
    batch,
    bins,
    pixels,
    views,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    TINY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    view = tl.program_id(1)
    channel = tl.arange(0, 16)
    rows = batch * bins * pixels
    total = tl.zeros((16, 16), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        keep = row < rows
        x, normal1, _, _, grad1 = _hidden_gradients(
            values, weight1, weight2, turned2, vectors, statistics, choices, slopes, sums2, row, keep,
            batch, bins, pixels, views, G, PRECISION,
        )  # fmt: skip
        grad1 -= _vector(sums1, 2 * view) / rows + normal1 * (_vector(sums1, 2 * view + 1) / rows)
        scale = _vector(statistics, views + view) * _vector(vectors, 0)
        grad1 = tl.where(keep[:, None], grad1 * scale, 0.0).to(x.dtype)
        total += tl.dot(tl.trans(x), grad1, input_precision=PRECISION)
        pixel = row // (bins * pixels) * pixels + row % pixels
        trust = tl.zeros((BLOCK,), dtype=tl.float32)
        for other in range(views):
            trust += tl.load(weights + other * batch * pixels + pixel, mask=keep, other=1.0)
        at = view.to(tl.int64) * batch * pixels + pixel
        share = tl.load(weights + at, mask=keep, other=0.0) / tl.maximum(trust, TINY)
        result = tl.dot(grad1, _matrix(turned1), input_precision=PRECISION)
        result += share[:, None] * _rows(upstream, row, keep, G).to(tl.float32)
        tl.store(
            gradient + view.to(tl.int64) * rows * G + row[:, None] * G + channel[None, :],
            result.to(gradient.dtype.element_ty),
            mask=keep[:, None] & (channel < G)[None, :],
        )
    program = view * tl.num_programs(0) + tl.program_id(0)
    tl.store(matrices + program * 256 + channel[:, None] * 16 + channel[None, :], total)


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
    shape = {"G": groups, "BLOCK": BLOCK, "PRECISION": _precision(volumes)}
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


def backward(upstream: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the volumes, of both matrices [16, 16] (the second as outputs x inputs), and the sums of the
    first [2, 16] and second [4, 16] batch norm: gradients of beta and gamma, then of the output layer."""
    output, volumes, matrix1, matrix2, vectors, numbers, weights, choices = saved
    views, batch, bins, pixels, groups = volumes.shape
    rows = batch * bins * pixels
    upstream = upstream.contiguous()
    sizes = (batch, bins, pixels, views)
    shape = {"G": groups, "BLOCK": BLOCK, "PRECISION": _precision(volumes)}
    slopes = torch.empty_like(weights)
    programs = min(triton.cdiv(batch * pixels, BLOCK), PROGRAMS)
    partial = vectors.new_empty(views, programs, 4, WIDTH)
    _output_backward_kernel[(programs, views)](
        volumes, output, upstream, matrix1, matrix2, vectors, numbers, weights, choices, slopes, partial,
        *sizes, TINY=TINY, **shape,
    )  # fmt: skip
    sums2 = partial.sum(1)  # [S, 4, 16]
    programs = min(triton.cdiv(rows, BLOCK), PROGRAMS)
    partial = vectors.new_empty(views, programs, 2, WIDTH)
    matrices = vectors.new_empty(2, views, programs, WIDTH, WIDTH)
    gradient = torch.empty_like(volumes)
    turned1, turned2 = matrix1.mT.contiguous(), matrix2.mT.contiguous()
    common = (volumes, matrix1, matrix2, turned2, vectors, numbers, choices, slopes, sums2)
    _second_backward_kernel[(programs, views)](*common, partial, matrices[0], *sizes, **shape)
    sums1 = partial.sum(1)  # [S, 2, 16]
    _first_backward_kernel[(programs, views)](
        *common, turned1, upstream, weights, sums1, matrices[1], gradient, *sizes, TINY=TINY, **shape
    )
    grad_matrix2, grad_matrix1 = matrices.sum((1, 2))  # [16, 16] each
    return gradient, grad_matrix1, grad_matrix2, sums1.sum(0), sums2.sum(0)


def _precision(values: Tensor) -> str:
    return "ieee" if values.dtype == torch.float32 else "tf32"  # only float32 looks at it
