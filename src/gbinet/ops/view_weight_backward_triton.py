"""Weighing the source views' volumes in training, backwards: see view_weight_triton.py.

A batch norm sends gradients to every voxel, although the output layer's go to one bin of a pixel only. But
what it sends to a voxel is linear in the values there, with the same factors everywhere. So the sums over
all voxels follow from moments of these values, which the forward pass has summed, and from sums over the
chosen bins; only the last pass, which writes the volume's gradient, visits all voxels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops import TINY
from gbinet.ops.launch_triton import dot_precision
from gbinet.ops.norm_triton import PROGRAMS
from gbinet.ops.view_weight_triton import (
    SMALL_BLOCK,
    WIDTH,
    Saved,
    batch_norm,
    matrix,
    relu,
    rows_of,
    vector,
)

SUMS = 3 + 2 * WIDTH  # rows of the sums over the chosen bins


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
    lives,  # [S, B, N] int8: a bit for each value of the second layer that is alive there
    partial,  # [S, P, 35, 16]: sums over the chosen bins
    batch,
    bins,
    pixels,
    views,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    TINY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The sums: s (1 row), s times the normalised value (1), slope (1), s of all x alive of all (16), s of
    all x n of all (16). s is the slope where a value of the second layer is alive; alive, n: see MOMENTS."""
    view = tl.program_id(1)
    rows = batch * bins * pixels
    everywhere = batch * pixels
    base = values + view.to(tl.int64) * rows * G
    group = tl.arange(0, G)
    channel = tl.arange(0, 16)
    matrix1 = matrix(weight1)
    matrix2 = matrix(weight2)
    mean1, rstd1, slope1, offset1 = batch_norm(statistics, vectors, 0, view, views)
    mean2, rstd2, slope2, offset2 = batch_norm(statistics, vectors, 1, view, views)
    sums = tl.zeros((BLOCK, 16), dtype=tl.float32)
    products = tl.zeros((BLOCK, 16), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    by_live = tl.zeros((16, 16), dtype=tl.float32)
    by_normal = tl.zeros((16, 16), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(everywhere, BLOCK), tl.num_programs(0)):
        pixel = tl.arange(0, BLOCK) + block * BLOCK
        keep = pixel < everywhere
        first = pixel + pixel // pixels * (bins - 1) * pixels  # the pixel's row in bin 0
        into = view.to(tl.int64) * everywhere + pixel
        choice = tl.load(choices + into, mask=keep, other=0).to(tl.int32)
        chosen = rows_of(base, first + choice * pixels, keep, G)
        weight = tl.load(weights + into, mask=keep, other=0.0)
        trust = tl.zeros((BLOCK,), dtype=tl.float32)
        for other in range(views):
            trust += tl.load(weights + other * everywhere + pixel, mask=keep, other=1.0)
        change = tl.zeros((BLOCK, G), dtype=tl.float32)
        for d in range(bins):
            at = (first + d * pixels)[:, None] * G + group[None, :]
            x = tl.load(base + at, mask=keep[:, None], other=0.0).to(tl.float32)
            fused = tl.load(output + at, mask=keep[:, None], other=0.0).to(tl.float32)
            grad = tl.load(upstream + at, mask=keep[:, None], other=0.0).to(tl.float32)
            change += grad * (x - fused)
        slope = tl.sum(change, axis=1) / tl.maximum(trust, TINY) * weight * (1 - weight)
        tl.store(slopes + into, slope, mask=keep)
        total += slope
        y1 = tl.dot(chosen, matrix1, input_precision=PRECISION)
        z1 = y1 * slope1 + offset1
        y2 = tl.dot(relu(z1).to(chosen.dtype), matrix2, input_precision=PRECISION)
        live2 = y2 * slope2 + offset2 > 0
        own = tl.where(live2, slope[:, None], 0.0)
        sums += own
        products += own * (y2 * rstd2 - mean2 * rstd2)
        turned = tl.trans(own.to(chosen.dtype))
        live1 = tl.where(z1 > 0, 1.0, 0.0)
        normal1 = (y1 * rstd1 - mean1 * rstd1) * live1
        by_live += tl.dot(turned, live1.to(chosen.dtype), input_precision=PRECISION)
        by_normal += tl.dot(turned, normal1.to(chosen.dtype), input_precision=PRECISION)
        bits = tl.sum(tl.where(live2 & (channel < 8)[None, :], 1 << channel[None, :], 0), axis=1)
        tl.store(lives + into, bits.to(tl.int8), mask=keep)
    into = partial + (view * tl.num_programs(0) + tl.program_id(0)) * 35 * 16 + channel
    tl.store(into, tl.sum(sums, axis=0))
    tl.store(into + 16, tl.sum(products, axis=0))
    tl.store(into + 32, tl.where(channel == 0, tl.sum(total, axis=0), 0.0))
    square = into[None, :] + 48 + channel[:, None] * 16
    tl.store(square, by_live)
    tl.store(square + 256, by_normal)


@triton.jit
def _column(pointer, number):
    return tl.load(pointer + number * 16 + tl.arange(0, 16))[:, None]


@triton.jit
def _product(a, b):
    """a @ b, [16, 16] float32 each."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit(do_not_specialize=["views"])
def _solve_kernel(
    sums,  # [S, 35, 16] of _output_backward_kernel
    moments,  # [S, 34, 16] of the forward pass
    weight2,  # [16, 16]: hidden x outputs
    vectors,
    statistics,
    factors,  # [S, 19, 16]: what the gradient of a voxel is made of, see below
    gradients,  # [S, 22, 16]: of beta and gamma, twice, the output's weights and bias, weight2 (transposed)
    rows,
    views,
):
    """What the batch norms send to all voxels.

    A voxel's gradient of the first layer's hidden values is `constant` + hidden @ `linear`, [16] and
    [16, 16], plus in the chosen bin what the output layer sends. That of the first layer's values before its
    batch norm is slope * (the former where alive, else 0) + `start` + value * `rise`.
    """
    view = tl.program_id(0)
    channel = tl.arange(0, 16)
    sums += view * 35 * 16
    moments += view * 34 * 16
    weights = matrix(weight2).to(tl.float32)  # hidden x outputs
    turned = tl.trans(weights)
    mean1, rstd1, slope1, _ = batch_norm(statistics, vectors, 0, view, views)
    gamma1 = vector(vectors, 0)
    beta1 = vector(vectors, 1)
    # Of the second layer, as columns [16, 1]: its values are the rows of the matrices below.
    mean2 = _column(statistics, 2 * views + view)
    rstd2 = _column(statistics, 3 * views + view)
    gamma2 = _column(vectors, 2)
    slope2 = rstd2 * gamma2
    weight3 = _column(vectors, 4)
    own = _column(sums, 0)
    own_normal = _column(sums, 1)
    sum2 = weight3 * own
    product2 = weight3 * own_normal
    pull = slope2 * product2 * rstd2 / rows

    linear = _product(weights, -pull * turned)  # symmetric
    constant = tl.sum(turned * (pull * mean2 - slope2 * sum2 / rows), axis=0)[None, :]
    own_live = matrix(sums + 48)
    own_normals = matrix(sums + 48 + 256)
    lives = vector(moments, 0)
    normals = vector(moments, 1)
    hidden_lives = matrix(moments + 32)
    hidden_normals = matrix(moments + 32 + 256)
    sent = slope2 * weight3 * turned  # by the output layer, outputs x hidden
    sum1 = tl.sum(sent * own_live + linear * hidden_lives, axis=0)[None, :] + constant * lives
    product1 = tl.sum(sent * own_normals + linear * hidden_normals, axis=0)[None, :] + constant * normals
    rise = -slope1 * product1 * rstd1 / rows
    start = -slope1 * sum1 / rows - rise * mean1

    hidden = beta1 * lives + gamma1 * normals  # their sum
    own_hidden = own_live * beta1 + own_normals * gamma1  # outputs x hidden
    squares = hidden_lives * beta1 + hidden_normals * gamma1  # hidden x hidden
    gradient2 = slope2 * (weight3 * own_hidden - sum2 / rows * hidden)
    gradient2 -= pull * (_product(turned, squares) - mean2 * hidden)

    at = channel[None, :]
    factors += view * 19 * 16
    tl.store(factors + at, constant)
    tl.store(factors + 16 + at, start)
    tl.store(factors + 32 + at, rise)
    tl.store(factors + 48 + channel[:, None] * 16 + at, linear)
    gradients += view * 22 * 16
    down = channel[:, None]
    tl.store(gradients + at, sum1)
    tl.store(gradients + 16 + at, product1)
    tl.store(gradients + 32 + down, sum2)
    tl.store(gradients + 48 + down, product2)
    tl.store(gradients + 64 + down, gamma2 * own_normal + _column(vectors, 3) * own)
    tl.store(gradients + 80 + at, vector(sums, 2))
    tl.store(gradients + 96 + channel[:, None] * 16 + at, gradient2)


@triton.jit(do_not_specialize=["batch", "bins", "views"])
def _volume_backward_kernel(
    values,  # [S, B, D, N, G]
    weight1,  # [16, 16]: inputs x hidden
    turned1,  # [16, 16]: its transpose
    turned2,
    vectors,
    statistics,
    factors,  # [S, 19, 16] of _solve_kernel
    choices,  # [S, B, N]
    slopes,
    lives,
    upstream,  # [B, D, N, G]
    weights,  # [S, B, N]
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
    everywhere = batch * pixels
    rows = everywhere * bins
    base = values + view.to(tl.int64) * rows * G
    result = gradient + view.to(tl.int64) * rows * G
    total = tl.zeros((16, 16), dtype=tl.float32)
    matrix1 = matrix(weight1)
    back1 = matrix(turned1)
    back2 = matrix(turned2)
    _, _, slope1, offset1 = batch_norm(statistics, vectors, 0, view, views)
    _, _, slope2, _ = batch_norm(statistics, vectors, 1, view, views)
    sent = slope2 * vector(vectors, 4)
    constant = vector(factors, 19 * view)
    start = vector(factors, 19 * view + 1)
    rise = vector(factors, 19 * view + 2)
    linear = matrix(factors + (19 * view + 3) * 16)
    # In two parts: rounded to half precision once, an error common to all voxels would add up over them.
    linear_high = linear.to(matrix1.dtype)
    linear_low = (linear - linear_high.to(tl.float32)).to(matrix1.dtype)
    for block in range(tl.program_id(0), tl.cdiv(everywhere, BLOCK), tl.num_programs(0)):
        pixel = tl.arange(0, BLOCK) + block * BLOCK
        keep = pixel < everywhere
        first = pixel + pixel // pixels * (bins - 1) * pixels  # the pixel's row in bin 0
        at = view.to(tl.int64) * everywhere + pixel
        choice = tl.load(choices + at, mask=keep, other=-1).to(tl.int32)
        live2 = tl.load(lives + at, mask=keep, other=0).to(tl.int32)[:, None] >> channel[None, :] & 1
        slope = tl.load(slopes + at, mask=keep, other=0.0)
        grad2 = tl.where(live2 != 0, slope[:, None] * sent, 0.0).to(matrix1.dtype)
        in_chosen = tl.dot(grad2, back2, input_precision=PRECISION)
        trust = tl.zeros((BLOCK,), dtype=tl.float32)
        for other in range(views):
            trust += tl.load(weights + other * everywhere + pixel, mask=keep, other=1.0)
        share = tl.load(weights + at, mask=keep, other=0.0) / tl.maximum(trust, TINY)
        direct = rows_of(upstream, first, keep, G)
        for d in range(bins):
            row = first + d * pixels
            x = rows_of(base, row, keep, G)
            ahead = rows_of(upstream, row + pixels, keep & (d + 1 < bins), G)
            y1 = tl.dot(x, matrix1, input_precision=PRECISION)
            z1 = y1 * slope1 + offset1
            hidden = relu(z1).to(x.dtype)
            grad1 = tl.dot(hidden, linear_high, input_precision=PRECISION)
            grad1 = tl.dot(hidden, linear_low, grad1, input_precision=PRECISION)
            grad1 += constant + tl.where((choice == d)[:, None], in_chosen, 0.0)
            grad1 = (tl.where(z1 > 0, grad1 * slope1, 0.0) + start + y1 * rise).to(x.dtype)
            total += tl.dot(tl.trans(x), grad1, input_precision=PRECISION)
            own = tl.dot(grad1, back1, input_precision=PRECISION)
            own += share[:, None] * direct.to(tl.float32)
            direct = ahead
            tl.store(
                result + row[:, None] * G + channel[None, :],
                own.to(gradient.dtype.element_ty),
                mask=keep[:, None] & (channel < G)[None, :],
            )
    program = view * tl.num_programs(0) + tl.program_id(0)
    tl.store(matrices + program * 256 + channel[:, None] * 16 + channel[None, :], total)


def backward(upstream: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the volumes, of the first matrix [16, 16], and of the rest, [22, 16]: beta and gamma of
    both batch norms, weights and bias of the output layer, second matrix (outputs x inputs)."""
    output, volumes, matrix1, matrix2, vectors, numbers, weights, choices, moments = saved
    views, batch, bins, pixels, groups = volumes.shape
    upstream = upstream.contiguous()
    sizes = (batch, bins, pixels, views)
    shape = {"G": groups, "BLOCK": SMALL_BLOCK, "TINY": TINY, "PRECISION": dot_precision(volumes.dtype)}
    slopes, lives = torch.empty_like(weights), torch.empty_like(choices)
    programs = min(triton.cdiv(batch * pixels, SMALL_BLOCK), PROGRAMS)
    partial = vectors.new_empty(views, programs, SUMS, WIDTH)
    _output_backward_kernel[(programs, views)](
        volumes, output, upstream, matrix1, matrix2, vectors, numbers, weights, choices, slopes, lives,
        partial, *sizes, **shape,
    )  # fmt: skip
    factors = vectors.new_empty(views, 3 + WIDTH, WIDTH)
    gradients = vectors.new_empty(views, 6 + WIDTH, WIDTH)
    _solve_kernel[(views,)](
        partial.sum(1), moments, matrix2, vectors, numbers, factors, gradients, batch * bins * pixels, views
    )
    matrices = vectors.new_empty(views, programs, WIDTH, WIDTH)
    gradient = torch.empty_like(volumes)
    _volume_backward_kernel[(programs, views)](
        volumes, matrix1, matrix1.mT.contiguous(), matrix2.mT.contiguous(), vectors, numbers, factors,
        choices, slopes, lives, upstream, weights, matrices, gradient, *sizes, **shape,
    )  # fmt: skip
    return gradient, matrices.sum((0, 1)), gradients.sum(0)
