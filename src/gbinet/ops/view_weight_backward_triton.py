"""Weighing the source views' volumes in training, backwards: see view_weight_triton.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops import TINY
from gbinet.ops.norm_triton import PROGRAMS
from gbinet.ops.view_weight_triton import (
    BLOCK,
    WIDTH,
    Saved,
    both_layers,
    matrix,
    precision,
    relu,
    rows_of,
    vector,
)


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
    matrix1 = matrix(weight1)
    matrix2 = matrix(weight2)
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
        x = rows_of(base, first + choice * pixels, keep, G)
        _, _, normal2, z2 = both_layers(x, matrix1, matrix2, statistics, vectors, view, views, PRECISION)
        grad = tl.where(z2 > 0, slope[:, None] * vector(vectors, 4), 0.0)
        sums += tl.sum(grad, axis=0)
        products += tl.sum(grad * normal2, axis=0)
        grad_weights += tl.sum(slope[:, None] * relu(z2), axis=0)
        grad_bias += tl.where(channel == 0, tl.sum(slope, axis=0), 0.0)
    into = partial + (view * tl.num_programs(0) + tl.program_id(0)) * 64 + channel
    tl.store(into, sums)
    tl.store(into + 16, products)
    tl.store(into + 32, grad_weights)
    tl.store(into + 48, grad_bias)


@triton.jit
def _hidden_gradients(
    values, matrix1, matrix2, turned2, vectors, statistics, choices, slopes, sums2, row, keep,
    batch, bins, pixels, views, G: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """At some voxels of a view: x, the first layer's normalised and hidden values, the gradients of what the
    second layer's batch norm gives and of what the first one's gives, before its own part."""
    view = tl.program_id(1)
    rows = batch * bins * pixels
    at = view.to(tl.int64) * batch * pixels + row // (bins * pixels) * pixels + row % pixels
    chosen = tl.load(choices + at, mask=keep, other=-1) == row // pixels % bins
    slope = tl.load(slopes + at, mask=chosen, other=0.0)
    x = rows_of(values + view.to(tl.int64) * rows * G, row, keep, G)
    normal1, z1, normal2, z2 = both_layers(x, matrix1, matrix2, statistics, vectors, view, views, PRECISION)
    grad2 = tl.where(z2 > 0, slope[:, None] * vector(vectors, 4), 0.0)
    grad2 -= vector(sums2, 4 * view) / rows + normal2 * (vector(sums2, 4 * view + 1) / rows)
    scale = vector(statistics, 3 * views + view) * vector(vectors, 2)
    grad2 = tl.where(keep[:, None], grad2 * scale, 0.0).to(x.dtype)
    grad1 = tl.dot(grad2, matrix(turned2), input_precision=PRECISION)
    return x, normal1, relu(z1).to(x.dtype), grad2, tl.where(z1 > 0, grad1, 0.0)


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
    matrix1 = matrix(weight1)
    matrix2 = matrix(weight2)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        _, normal1, hidden, grad2, grad1 = _hidden_gradients(
            values, matrix1, matrix2, turned2, vectors, statistics, choices, slopes, sums2, row, row < rows,
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
    matrix1 = matrix(weight1)
    matrix2 = matrix(weight2)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = tl.arange(0, BLOCK) + block * BLOCK
        keep = row < rows
        x, normal1, _, _, grad1 = _hidden_gradients(
            values, matrix1, matrix2, turned2, vectors, statistics, choices, slopes, sums2, row, keep,
            batch, bins, pixels, views, G, PRECISION,
        )  # fmt: skip
        grad1 -= vector(sums1, 2 * view) / rows + normal1 * (vector(sums1, 2 * view + 1) / rows)
        scale = vector(statistics, views + view) * vector(vectors, 0)
        grad1 = tl.where(keep[:, None], grad1 * scale, 0.0).to(x.dtype)
        total += tl.dot(tl.trans(x), grad1, input_precision=PRECISION)
        pixel = row // (bins * pixels) * pixels + row % pixels
        trust = tl.zeros((BLOCK,), dtype=tl.float32)
        for other in range(views):
            trust += tl.load(weights + other * batch * pixels + pixel, mask=keep, other=1.0)
        at = view.to(tl.int64) * batch * pixels + pixel
        share = tl.load(weights + at, mask=keep, other=0.0) / tl.maximum(trust, TINY)
        result = tl.dot(grad1, matrix(turned1), input_precision=PRECISION)
        result += share[:, None] * rows_of(upstream, row, keep, G).to(tl.float32)
        tl.store(
            gradient + view.to(tl.int64) * rows * G + row[:, None] * G + channel[None, :],
            result.to(gradient.dtype.element_ty),
            mask=keep[:, None] & (channel < G)[None, :],
        )
    program = view * tl.num_programs(0) + tl.program_id(0)
    tl.store(matrices + program * 256 + channel[:, None] * 16 + channel[None, :], total)


def backward(upstream: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the volumes, of both matrices [16, 16] (the second as outputs x inputs), and the sums of
    the first [2, 16] and second [4, 16] batch norm: gradients of beta and gamma, then of the output layer."""
    output, volumes, matrix1, matrix2, vectors, numbers, weights, choices = saved
    views, batch, bins, pixels, groups = volumes.shape
    rows = batch * bins * pixels
    upstream = upstream.contiguous()
    sizes = (batch, bins, pixels, views)
    shape = {"G": groups, "BLOCK": BLOCK, "PRECISION": precision(volumes)}
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
