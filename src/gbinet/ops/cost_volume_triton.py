"""The cost volume of a stage in one pass: hypotheses, warp, correlation, view weights, fusion over views.

Nothing but the fused volume is written. Inference only: batch norms are folded. See ops/cost_volume.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.bilinear_triton import project, sample
from gbinet.ops.bins import Bins
from gbinet.ops.bins_triton import bin_depth
from gbinet.ops.warp_triton import rows_of_channels

# Groups and the layers of the view weights are padded to 16: a matrix product needs that many rows.


@triton.jit
def _layers(matrices, vectors, group_mean, PRECISION: tl.constexpr):
    """The view-weight network: two hidden layers with their biases, the output's weights and its bias.

    The first layer takes products of channels: the means over groups are in its matrix.
    """
    unit = tl.arange(0, 16)
    few = tl.arange(0, 8)  # outputs of the second layer
    kind = matrices.dtype.element_ty
    first_layer = tl.load(matrices + unit[:, None] * 16 + unit[None, :])
    first_layer = tl.dot(group_mean, first_layer, input_precision=PRECISION).to(kind)  # [KP, 16]
    second_layer = tl.load(matrices + 256 + unit[:, None] * 16 + few[None, :])
    first_bias = tl.load(vectors + unit)[None, :]
    second_bias = tl.load(vectors + 16 + few)[None, :]
    output_weight = tl.load(vectors + 32 + few)[None, :]
    return first_layer, second_layer, first_bias, second_bias, output_weight, tl.load(vectors + 48)


@triton.jit
def _score(product, layers, PRECISION: tl.constexpr):
    """How far a view is trusted at each hypothesis, before the sigmoid: [ROWS] from products [ROWS, KP]."""
    hidden = tl.dot(product, layers[0], input_precision=PRECISION) + layers[2]
    hidden = tl.maximum(hidden, 0.0).to(product.dtype)
    hidden = tl.dot(hidden, layers[1], input_precision=PRECISION) + layers[3]
    return tl.sum(tl.maximum(hidden, 0.0) * layers[4], axis=1) + layers[5]


@triton.jit
def _filled(product, ROWS: tl.constexpr, KP: tl.constexpr):
    """[ROWS, KP or KP / 2] -> [ROWS, KP]: with zeros after the channels."""
    if product.shape[1] < KP:
        product = tl.reshape(tl.trans(tl.join(product, tl.zeros_like(product)), 0, 2, 1), (ROWS, KP))
    return product


@triton.jit
def _added(total, product, share):
    return total + product.to(tl.float32) * share


@triton.jit
def _spread(values, P: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK] -> [ROWS, 1]: of each pixel for all its hypotheses."""
    return tl.reshape(tl.broadcast_to(values[None, :], (P, BLOCK)), (P * BLOCK,))[:, None]


@triton.jit
def _group_mean(C: tl.constexpr, G: tl.constexpr, KP: tl.constexpr):
    """[KP, 16]: what channels give to the means of their groups."""
    channel = tl.arange(0, KP)[:, None]
    own = (channel // (C // G) == tl.arange(0, 16)[None, :]) & (channel < C)
    return tl.where(own, G / C, 0.0)


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
    P: tl.constexpr,  # hypotheses worked on at a time, a power of two that divides D
    FACTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    INVERSE: tl.constexpr,
    APART: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    ROWS: tl.constexpr = P * BLOCK  # a row is one hypothesis of one pixel; pixels vary fastest
    PARTS: tl.constexpr = D // P
    batch = tl.program_id(1).to(tl.int64)
    pixels = height * width
    row = tl.arange(0, ROWS)
    d = row // BLOCK
    pixel = tl.program_id(0) * BLOCK + row % BLOCK
    keep = pixel < pixels
    x = ((pixel % width).to(tl.float32) + 0.5) * scale
    y = ((pixel // width).to(tl.float32) + 0.5) * scale
    ends = depth_range + batch * 2
    near = tl.load(ends)
    far = tl.load(ends + 1)
    channel = tl.arange(0, CP)
    # Fewer than 16 channels are filled up with zeros for products of matrices only: no thread waits while
    # others sample.
    KP: tl.constexpr = 2 * CP if CP < 16 else CP
    kind = matrices.dtype.element_ty
    group_mean = _group_mean(C, G, KP).to(kind)  # [KP, 16]
    layers = _layers(matrices, vectors, group_mean, PRECISION)
    own = tl.load(
        reference + batch * strides[3] + pixel[:, None] * C + channel[None, :],
        mask=keep[:, None] & (channel < C)[None, :],
        other=0.0,
    ).to(tl.float32)
    depths = ()
    totals = ()
    nothing = tl.zeros((ROWS, CP), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        number = batch * D + part * P + d if APART else batch  # of the map of cells
        cells_here = tl.load(cell + number * pixels + pixel, mask=keep, other=0)
        depth = bin_depth(cells_here, near, far, part * P + d, cells, FACTOR, SHIFT, INVERSE, APART)
        depths = depths + (depth,)  # type: ignore[assignment]  # noqa: RUF005
        totals = totals + (nothing,)  # type: ignore[assignment]  # noqa: RUF005
    trust_total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(S):
        transform = transforms + (batch * S + i) * 12
        base = sources[i] + batch * source_strides[i]
        score = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
        products = ()
        for part in tl.static_range(PARTS):
            top, left, fy, fx = project(
                transform, x, y, depths[part], source_heights[i], source_widths[i], scale
            )
            warped = sample(base, top, left, fy, fx, channel, keep, source_heights[i], source_widths[i], C)
            product = (own * warped).to(kind)
            score = tl.maximum(score, _score(_filled(product, ROWS, KP), layers, PRECISION))
            products = products + (product,)  # type: ignore[assignment]  # noqa: RUF005
        trust = tl.sigmoid(tl.max(tl.reshape(score, (P, BLOCK)), axis=0))
        trust_total += trust
        share = _spread(trust, P, BLOCK)
        sums = ()
        for part in tl.static_range(PARTS):
            sums = sums + (_added(totals[part], products[part], share),)  # type: ignore[assignment]  # noqa: RUF005
        totals = sums
    share = 1 / tl.maximum(_spread(trust_total, P, BLOCK), 1e-30)
    unit = tl.arange(0, 16)
    for part in tl.static_range(PARTS):
        mean = _filled((totals[part] * share).to(kind), ROWS, KP)
        result = tl.dot(mean, group_mean, input_precision=PRECISION)
        voxel = (
            batch * strides[0] + (part * P + d).to(tl.int64) * strides[1] + pixel.to(tl.int64) * strides[2]
        )
        pointers = output + voxel[:, None] + unit[None, :]
        mask = keep[:, None] & (unit < G)[None, :]
        tl.store(pointers, result.to(output.dtype.element_ty), mask=mask)


def cost_volume(
    reference: Tensor,  # [B, C, H, W]
    sources: Sequence[Tensor],  # S maps [B, C, h, w]
    transforms: Tensor,  # [B, S, 12] of the whole images
    bins: Bins,
    view_weight: tuple[Tensor, Tensor],  # matrices [2, 16, 16] and vectors [4, 16]: ops/view_weight.pack
    groups: int,
    scale: int = 1,  # image size / feature size
) -> Tensor:  # [B, G, D, H, W], groups side by side; of bins apart, all groups of all bins of a pixel
    rows = rows_of_channels(reference)
    maps = tuple(rows_of_channels(s) for s in sources)
    batch, height, width, channels = rows.shape
    together, block, warps = _launch(bins.count, channels)
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
        P=together, FACTOR=bins.factor, SHIFT=bins.shift, INVERSE=bins.inverse, APART=bins.apart, BLOCK=block,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32", num_warps=warps,
    )  # fmt: skip
    return volume


def _launch(count: int, channels: int) -> tuple[int, int, int]:
    """Hypotheses worked on at a time, pixels and warps of a program."""
    together = count & -count  # the largest power of two that divides it
    if together >= 8:  # hundreds of pixels with dozens of hypotheses each
        return together, max(1, 64 // together), 4
    rows = 64 if channels <= 8 else 32 if channels <= 32 else 16
    return together, max(1, rows // together), 2
