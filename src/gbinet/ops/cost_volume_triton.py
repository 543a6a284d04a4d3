"""The cost volume of a stage in one pass: hypotheses, warp, correlation, view weights, fusion over views.

Nothing but the fused volume is written. Inference only: batch norms are folded. See ops/cost_volume.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.bilinear_triton import project, sample
from gbinet.ops.bins import Bins
from gbinet.ops.bins_triton import bin_depth
from gbinet.ops.launch_triton import dot_precision
from gbinet.ops.layout import pixel_rows

# Groups and the layers of the view weights are padded to 16: a matrix product needs that many.


@triton.jit
def _layers(matrices, vectors):
    """The view-weight network: two hidden layers with their biases, the output's weights and its bias."""
    unit = tl.arange(0, 16)
    square = unit[:, None] * 16 + unit[None, :]
    first_layer = tl.load(matrices + square)
    second_layer = tl.load(matrices + 256 + square)
    first_bias = tl.load(vectors + unit)[None, :]
    second_bias = tl.load(vectors + 16 + unit)[None, :]
    output_weight = tl.load(vectors + 32 + unit)[None, :]
    return first_layer, second_layer, first_bias, second_bias, output_weight, tl.load(vectors + 48)


@triton.jit
def _trust(volume, layers, real, DP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """How far a view is trusted at each pixel, [BLOCK], from its volume [ROWS, 16]."""
    kind = layers[0].dtype
    hidden = tl.dot(volume.to(kind), layers[0], input_precision=PRECISION) + layers[2]
    hidden = tl.maximum(hidden, 0.0)
    hidden = tl.dot(hidden.to(kind), layers[1], input_precision=PRECISION) + layers[3]
    score = tl.sum(tl.maximum(hidden, 0.0) * layers[4], axis=1) + layers[5]  # [ROWS]
    score = tl.where(real, score, -float("inf"))
    return tl.sigmoid(tl.max(tl.reshape(score, (DP, BLOCK)), axis=0))


@triton.jit
def _correlated(own, warped, group_mean, ROWS: tl.constexpr, KP: tl.constexpr, PRECISION: tl.constexpr):
    """Means over the groups of channels of own times warped, both [ROWS, KP or KP / 2]: [ROWS, 16]."""
    product = (own * warped).to(group_mean.dtype)
    if product.shape[1] < KP:
        product = tl.reshape(tl.join(product, tl.zeros_like(product)), (ROWS, KP))
    return tl.dot(product, group_mean, input_precision=PRECISION)


@triton.jit
def _spread(values, DP: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK] -> [ROWS, 1]: of each pixel for all its hypotheses."""
    return tl.reshape(tl.broadcast_to(values[None, :], (DP, BLOCK)), (DP * BLOCK,))[:, None]


@triton.jit
def _group_mean(C: tl.constexpr, G: tl.constexpr, KP: tl.constexpr, PAIRED: tl.constexpr):
    """[KP, 16]: what channels (PAIRED: each with a zero beside it) give to the means of their groups."""
    slot = tl.arange(0, KP)
    channel = slot // 2 if PAIRED else slot
    return tl.where(channel[:, None] // (C // G) == tl.arange(0, 16)[None, :], G / C, 0.0)


@triton.jit
def _source(sources, strides, heights, widths, number, batch, S: tl.constexpr):
    """Where the map of a source begins, its height and its width."""
    base = sources[0] + batch * strides[0]
    height = heights[0]
    width = widths[0]
    for i in tl.static_range(1, S):
        base = tl.where(number == i, sources[i] + batch * strides[i], base)
        height = tl.where(number == i, heights[i], height)
        width = tl.where(number == i, widths[i], width)
    return base, height, width


@triton.jit(do_not_specialize=("height", "width", "cells", "scale"))
def _kernel(
    reference,  # [B, H, W, C], batches apart as strides say
    sources,  # tuple of S maps [B, h_i, w_i, C]
    source_strides,  # tuple: between batches
    source_heights,  # tuple
    source_widths,  # tuple
    transforms,  # [B, S, 12]: M row by row, then t
    cell,  # [B, H, W] int32; APART: [B, D, H, W], the bins themselves
    depth_range,  # [B, 2]
    matrices,  # [2, 16, 16]: inputs x outputs of the two hidden layers, in the features' type
    vectors,  # [4, 16] float32: their biases, the output's weights, its bias
    output,  # [B, D, H, W, G], groups side by side
    strides,  # tuple: between batches, bins and pixels of the output, and between batches of the reference
    height,
    width,
    cells,
    scale,  # image size / feature size
    S: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    FACTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    INVERSE: tl.constexpr,
    APART: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    ROWS: tl.constexpr = DP * BLOCK  # a row is one hypothesis of one pixel; pixels vary fastest
    batch = tl.program_id(1).to(tl.int64)
    pixels = height * width
    row = tl.arange(0, ROWS)
    d = row // BLOCK
    pixel = tl.program_id(0) * BLOCK + row % BLOCK
    keep = (pixel < pixels) & (d < D)
    x = ((pixel % width).to(tl.float32) + 0.5) * scale
    y = ((pixel // width).to(tl.float32) + 0.5) * scale
    number = batch * D + d if APART else batch  # of the map of cells
    own_cell = tl.load(cell + number * pixels + pixel, mask=keep, other=0)
    ends = depth_range + batch * 2
    depth = bin_depth(own_cell, tl.load(ends), tl.load(ends + 1), d, cells, FACTOR, SHIFT, INVERSE, APART)
    channel = tl.arange(0, CP)
    # Fewer than 16 channels: each gets a zero beside it, so that the product has the rows it needs and no
    # thread waits while others sample.
    KP: tl.constexpr = 2 * CP if CP < 16 else CP
    group_mean = _group_mean(C, G, KP, CP < 16).to(matrices.dtype.element_ty)  # [KP, 16]
    layers = _layers(matrices, vectors)
    own = tl.load(
        reference + batch * strides[3] + pixel[:, None] * C + channel[None, :],
        mask=keep[:, None] & (channel < C)[None, :],
        other=0.0,
    ).to(tl.float32)
    total = tl.zeros((ROWS, 16), dtype=tl.float32)
    trust_total = tl.zeros((BLOCK,), dtype=tl.float32)
    # A loop that stays one: unrolled, it takes ten seconds to compile. One stage: nothing is read ahead.
    for i in tl.range(S, num_stages=1):
        base, map_height, map_width = _source(
            sources, source_strides, source_heights, source_widths, i, batch, S
        )
        transform = transforms + (batch * S + i) * 12
        top, left, fy, fx = project(transform, x, y, depth, map_height, map_width, scale)
        warped = sample(base, top, left, fy, fx, channel, keep, map_height, map_width, C)
        volume = _correlated(own, warped, group_mean, ROWS, KP, PRECISION)
        trust = _trust(volume, layers, d < D, DP, BLOCK, PRECISION)
        total += volume * _spread(trust, DP, BLOCK)
        trust_total += trust
    result = total / tl.maximum(_spread(trust_total, DP, BLOCK), 1e-30)
    voxel = batch * strides[0] + d.to(tl.int64) * strides[1] + pixel.to(tl.int64) * strides[2]
    unit = tl.arange(0, 16)
    pointers = output + voxel[:, None] + unit[None, :]
    tl.store(pointers, result.to(output.dtype.element_ty), mask=keep[:, None] & (unit < G)[None, :])


def cost_volume(
    reference: Tensor,  # [B, C, H, W]
    sources: Sequence[Tensor],  # S maps [B, C, h, w]
    transforms: Tensor,  # [B, S, 12] of the whole images
    bins: Bins,
    view_weight: tuple[Tensor, Tensor],  # matrices [2, 16, 16] and vectors [4, 16]: ops/view_weight.pack
    groups: int,
    scale: int = 1,  # image size / feature size
) -> Tensor:  # [B, G, D, H, W], groups side by side; of bins apart, all groups of all bins of a pixel
    rows = pixel_rows(reference)
    maps = tuple(pixel_rows(s) for s in sources)
    batch, height, width, channels = rows.shape
    padded = triton.next_power_of_2(bins.count)
    together, warps = _launch(padded, channels)
    block = max(1, together // padded)  # pixels of a program
    if bins.apart:
        volume = rows.new_empty(batch, height, width, bins.count, groups).permute(0, 4, 3, 1, 2)
    else:
        volume = rows.new_empty(batch, bins.count, height, width, groups).permute(0, 4, 1, 2, 3)
    strides = (volume.stride(0), volume.stride(2), volume.stride(4), rows.stride(0))
    _kernel[(triton.cdiv(height * width, block), batch)](
        rows, maps, tuple(m.stride(0) for m in maps), tuple(m.shape[1] for m in maps),
        tuple(m.shape[2] for m in maps), transforms.contiguous(), bins.cell.contiguous(),
        bins.depth_range.contiguous(), *view_weight, volume, strides, height, width, bins.cells, scale,
        S=len(maps), C=channels, CP=max(8, triton.next_power_of_2(channels)), G=groups, D=bins.count,
        DP=padded, FACTOR=bins.factor, SHIFT=bins.shift, INVERSE=bins.inverse, APART=bins.apart, BLOCK=block,
        PRECISION=dot_precision(rows.dtype), num_warps=warps,
    )  # fmt: skip
    return volume


def _launch(padded: int, channels: int) -> tuple[int, int]:
    """Rows and warps of a program, as measured."""
    if channels <= 8:
        return (256, 4) if padded >= 8 else (128, 2)
    return (32, 2) if channels <= 32 else (64, 4)
