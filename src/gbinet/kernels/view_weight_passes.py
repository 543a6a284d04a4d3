"""The passes over the volumes that kernels/view_weight.py is made of; shapes and reasons are told there."""

from __future__ import annotations

import triton
import triton.language as tl


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
def _relu(values):
    return tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def statistics_kernel(
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
def weights_kernel(
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
        _, z1 = _layer(
            x, matrix1, _vector(statistics, view), _vector(statistics, views + view),
            _vector(vectors, 0), _vector(vectors, 1), PRECISION,
        )  # fmt: skip
        _, z2 = _layer(
            _relu(z1).to(x.dtype), matrix2,
            _vector(statistics, 2 * views + view), _vector(statistics, 3 * views + view),
            _vector(vectors, 2), _vector(vectors, 3), PRECISION,
        )  # fmt: skip
        score = tl.sum(_relu(z2) * _vector(vectors, 4), axis=1) + tl.load(bias)
        better = (score > best) | (score != score)  # not a number stays
        best = tl.where(better, score, best)
        choice = tl.where(better, d, choice)
    into = view.to(tl.int64) * batch * pixels + pixel
    tl.store(weights + into, tl.sigmoid(best), mask=keep)
    tl.store(choices + into, choice.to(tl.int8), mask=keep)


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def fuse_kernel(
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
def output_backward_kernel(
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
        _, z1 = _layer(
            x, matrix1, _vector(statistics, view), _vector(statistics, views + view),
            _vector(vectors, 0), _vector(vectors, 1), PRECISION,
        )  # fmt: skip
        normal2, z2 = _layer(
            _relu(z1).to(x.dtype), matrix2,
            _vector(statistics, 2 * views + view), _vector(statistics, 3 * views + view),
            _vector(vectors, 2), _vector(vectors, 3), PRECISION,
        )  # fmt: skip
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


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def hidden_backward_kernel(
    values,  # [S, B, D, N, G]
    upstream,  # [B, D, N, G]
    weight1,  # [16, 16]: inputs x hidden
    weight2,
    turned1,  # [16, 16]: their transposes
    turned2,
    vectors,
    statistics,
    weights,
    choices,
    slopes,
    sums2,  # [S, 4, 16]: of the second batch norm
    sums1,  # [S, 2, 16]: of the first; not read while they are computed
    partial,  # [S, P, 2, 16]: sums of the first batch norm; not written once they are known
    matrices,  # [S, P, 16, 16]: gradient of weight2 (outputs x inputs), then of weight1 (inputs x outputs)
    gradient,  # [S, B, D, N, G]: not written while the sums are computed
    batch,
    bins,
    pixels,
    views,
    G: tl.constexpr,
    LAST: tl.constexpr,  # the sums of the first batch norm are known: finish
    BLOCK: tl.constexpr,
    TINY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    view = tl.program_id(1)
    rows = batch * bins * pixels
    everywhere = batch * pixels
    base = values + view.to(tl.int64) * rows * G
    channel = tl.arange(0, 16)
    matrix1 = _matrix(weight1)
    matrix2 = _matrix(weight2)
    sums = tl.zeros((16,), dtype=tl.float32)
    products = tl.zeros((16,), dtype=tl.float32)
    total = tl.zeros((16, 16), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        keep = row < rows
        pixel = row // (bins * pixels) * pixels + row % pixels
        d = row // pixels % bins
        into = view.to(tl.int64) * everywhere + pixel
        chosen = tl.load(choices + into, mask=keep, other=-1) == d
        slope = tl.load(slopes + into, mask=chosen, other=0.0)
        x = _rows(base, row, keep, G)
        rstd1 = _vector(statistics, views + view)
        rstd2 = _vector(statistics, 3 * views + view)
        normal1, z1 = _layer(
            x, matrix1, _vector(statistics, view), rstd1, _vector(vectors, 0), _vector(vectors, 1), PRECISION
        )
        hidden = _relu(z1).to(x.dtype)
        normal2, z2 = _layer(
            hidden, matrix2, _vector(statistics, 2 * views + view), rstd2,
            _vector(vectors, 2), _vector(vectors, 3), PRECISION,
        )  # fmt: skip
        grad2 = tl.where(z2 > 0, slope[:, None] * _vector(vectors, 4), 0.0)
        grad2 -= _vector(sums2, 4 * view) / rows + normal2 * (_vector(sums2, 4 * view + 1) / rows)
        grad2 = tl.where(keep[:, None], grad2 * rstd2 * _vector(vectors, 2), 0.0).to(x.dtype)
        grad1 = tl.dot(grad2, _matrix(turned2), input_precision=PRECISION)
        grad1 = tl.where(z1 > 0, grad1, 0.0)
        if LAST:
            grad1 -= _vector(sums1, 2 * view) / rows + normal1 * (_vector(sums1, 2 * view + 1) / rows)
            grad1 = tl.where(keep[:, None], grad1 * rstd1 * _vector(vectors, 0), 0.0).to(x.dtype)
            total += tl.dot(tl.trans(x), grad1, input_precision=PRECISION)
            trust = tl.zeros((BLOCK,), dtype=tl.float32)
            for other in range(views):
                trust += tl.load(weights + other * everywhere + pixel, mask=keep, other=1.0)
            share = tl.load(weights + into, mask=keep, other=0.0) / tl.maximum(trust, TINY)
            result = tl.dot(grad1, _matrix(turned1), input_precision=PRECISION)
            result += share[:, None] * _rows(upstream, row, keep, G).to(tl.float32)
            tl.store(
                gradient + view.to(tl.int64) * rows * G + row[:, None] * G + channel[None, :],
                result.to(gradient.dtype.element_ty),
                mask=keep[:, None] & (channel < G)[None, :],
            )
        else:
            sums += tl.sum(grad1, axis=0)
            products += tl.sum(grad1 * normal1, axis=0)
            total += tl.dot(tl.trans(grad2), hidden, input_precision=PRECISION)
    program = view * tl.num_programs(0) + tl.program_id(0)
    if not LAST:
        tl.store(partial + program * 32 + channel, sums)
        tl.store(partial + program * 32 + 16 + channel, products)
    tl.store(matrices + program * 256 + channel[:, None] * 16 + channel[None, :], total)
