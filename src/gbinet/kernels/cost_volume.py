"""The cost volume of a stage in one pass: hypotheses, warp, correlation, view weights, fusion over views.

Nothing but the fused volume is written. Inference only. Twin of model/cost_volume.py with folded batch norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.kernels.warp import rows_of_channels

if TYPE_CHECKING:
    from gbinet.model.search import SearchState

# Groups and the layers of the view weights are padded to 16: a matrix product needs that many.


@triton.jit
def depth_of(position, near, far, INVERSE: tl.constexpr):
    """Position in [0, 1] of the range -> depth, as model/search.py computes it."""
    return 1 / ((1 - position) / near + position / far) if INVERSE else near + position * (far - near)


@triton.jit
def _hypothesis(
    cell,
    near,
    far,
    d,
    cells,
    FIRST: tl.constexpr,
    TOLERANCE: tl.constexpr,
    INVERSE: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """Centre of bin d of each pixel (or of the given cell), as model/search.py computes it."""
    if GIVEN:
        return depth_of((cell.to(tl.float32) + 0.5) / cells, near, far, INVERSE)
    first = cell if FIRST else 2 * cell - TOLERANCE
    low = tl.minimum(tl.maximum(first + d, 0), cells).to(tl.float32) / cells
    high = tl.minimum(tl.maximum(first + d + 1, 0), cells).to(tl.float32) / cells
    return depth_of((low + high) / 2, near, far, INVERSE)


@triton.jit
def _gather(base, row, column, weight, channel, keep, height, width, C: tl.constexpr):
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & keep
    pointers = base + ((row * width + column) * C)[:, None] + channel[None, :]
    values = tl.load(pointers, mask=inside[:, None] & (channel < C)[None, :], other=0.0)
    return values.to(tl.float32) * weight[:, None]


@triton.jit
def _warped(base, t, x, y, depth, channel, keep, height, width, scale, C: tl.constexpr):
    """Source features [ROWS, CP] where the reference pixels (x, y) with these depths fall; zero outside.

    (x, y) are pixels of the whole images; the features are `scale` times smaller.
    """
    z = (tl.load(t + 6) * x + tl.load(t + 7) * y + tl.load(t + 8)) * depth + tl.load(t + 11)
    front = z > 0
    safe = tl.where(front, z, 1.0)
    u = (tl.load(t + 0) * x + tl.load(t + 1) * y + tl.load(t + 2)) * depth + tl.load(t + 9)
    v = (tl.load(t + 3) * x + tl.load(t + 4) * y + tl.load(t + 5)) * depth + tl.load(t + 10)
    # Positions count pixels here, so that a centre (+0.5 in camera.py) is an integer.
    u = tl.minimum(tl.maximum(tl.where(front, u / safe / scale - 0.5, -2.0), -2.0), width + 1.0)
    v = tl.minimum(tl.maximum(tl.where(front, v / safe / scale - 0.5, -2.0), -2.0), height + 1.0)
    left = tl.floor(u)
    top = tl.floor(v)
    fx = u - left
    fy = v - top
    column = left.to(tl.int32)
    row = top.to(tl.int32)
    total = _gather(base, row, column, (1 - fy) * (1 - fx), channel, keep, height, width, C)
    total += _gather(base, row, column + 1, (1 - fy) * fx, channel, keep, height, width, C)
    total += _gather(base, row + 1, column, fy * (1 - fx), channel, keep, height, width, C)
    total += _gather(base, row + 1, column + 1, fy * fx, channel, keep, height, width, C)
    return total


@triton.jit(do_not_specialize=("height", "width", "cells", "scale"))
def _kernel(
    reference,  # [B, H, W, C], batches reference_stride apart
    sources,  # tuple of S maps [B, h_i, w_i, C]
    source_strides,  # tuple: between batches
    source_heights,  # tuple
    source_widths,  # tuple
    transforms,  # [B, S, 12]: M row by row, then t
    cell,  # [B, H, W] int32; GIVEN: [B, D, H, W], the hypotheses themselves
    depth_range,  # [B, 2]
    matrices,  # [2, 16, 16]: inputs x outputs of the two hidden layers, in the features' type
    vectors,  # [4, 16] float32: their biases, the output's weights, its bias
    output,  # [B, D, H, W, G], or another layout of these as the next arguments say; groups side by side
    batch_stride,
    bin_stride,
    pixel_stride,
    reference_stride,
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
    FIRST: tl.constexpr,
    TOLERANCE: tl.constexpr,
    INVERSE: tl.constexpr,
    GIVEN: tl.constexpr,
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
    map_of_cells = batch * D + d if GIVEN else batch
    own_cell = tl.load(cell + map_of_cells * pixels + pixel, mask=keep, other=0)
    near = tl.load(depth_range + batch * 2)
    far = tl.load(depth_range + batch * 2 + 1)
    depth = _hypothesis(own_cell, near, far, d, cells, FIRST, TOLERANCE, INVERSE, GIVEN)

    channel = tl.arange(0, CP)
    unit = tl.arange(0, 16)
    kind = matrices.dtype.element_ty
    # Fewer than 16 channels: each gets a zero beside it, so that the product has the rows it needs and no
    # thread waits while others sample.
    PAIRED: tl.constexpr = CP < 16
    KP: tl.constexpr = 2 * CP if PAIRED else CP
    slot = tl.arange(0, KP)
    slot_channel = slot // 2 if PAIRED else slot
    group_mean = tl.where(slot_channel[:, None] // (C // G) == unit[None, :], G / C, 0.0).to(kind)  # [KP, 16]
    square = unit[:, None] * 16 + unit[None, :]
    first_layer = tl.load(matrices + square)
    second_layer = tl.load(matrices + 256 + square)
    first_bias = tl.load(vectors + unit)[None, :]
    second_bias = tl.load(vectors + 16 + unit)[None, :]
    output_weight = tl.load(vectors + 32 + unit)[None, :]
    output_bias = tl.load(vectors + 48)

    own = tl.load(
        reference + batch * reference_stride + pixel[:, None] * C + channel[None, :],
        mask=keep[:, None] & (channel < C)[None, :],
        other=0.0,
    ).to(tl.float32)
    total = tl.zeros((ROWS, 16), dtype=tl.float32)
    weight_total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(S):
        transform = transforms + (batch * S + i) * 12
        base = sources[i] + batch * source_strides[i]
        warped = _warped(
            base, transform, x, y, depth, channel, keep, source_heights[i], source_widths[i], scale, C
        )
        product = (own * warped).to(kind)
        if PAIRED:
            product = tl.reshape(tl.join(product, tl.zeros_like(product)), (ROWS, KP))
        volume = tl.dot(product, group_mean, input_precision=PRECISION)  # [ROWS, 16]
        hidden = tl.dot(volume.to(kind), first_layer, input_precision=PRECISION) + first_bias
        hidden = tl.maximum(hidden, 0.0)
        hidden = tl.dot(hidden.to(kind), second_layer, input_precision=PRECISION) + second_bias
        score = tl.sum(tl.maximum(hidden, 0.0) * output_weight, axis=1) + output_bias  # [ROWS]
        score = tl.where(d < D, score, -float("inf"))
        weight = tl.sigmoid(tl.max(tl.reshape(score, (DP, BLOCK)), axis=0))  # [BLOCK]
        spread = tl.reshape(tl.broadcast_to(weight[None, :], (DP, BLOCK)), (ROWS,))
        total += volume * spread[:, None]
        weight_total += weight
    spread = tl.reshape(tl.broadcast_to(weight_total[None, :], (DP, BLOCK)), (ROWS,))
    voxel = batch * batch_stride + d.to(tl.int64) * bin_stride + pixel.to(tl.int64) * pixel_stride
    pointers = output + voxel[:, None] + unit[None, :]
    result = (total / tl.maximum(spread[:, None], 1e-30)).to(output.dtype.element_ty)
    tl.store(pointers, result, mask=keep[:, None] & (unit < G)[None, :])


def fused_cost_volume(
    reference: Tensor,  # [B, C, H, W]
    sources: Sequence[Tensor],  # S maps [B, C, h, w]
    transforms: Tensor,  # [B, S, 12]: M row by row and t of sources_from_reference, of the whole images
    state: SearchState,
    view_weight: tuple[Tensor, Tensor],  # matrices [2, 16, 16] and vectors [4, 16]; see inference/engine.py
    groups: int,
    scale: int = 1,  # image size / feature size
    cells: Tensor | None = None,  # [B, D, H, W] int32: test the centres of these cells of the state's stage
    output: Tensor
    | None = None,  # [B, H, W, I >= D * G]: write there, a pixel's bins and groups side by side
) -> Tensor:  # [B, G, D, H, W] in channels_last_3d layout
    """Same result as model.cost_volume on search.hypotheses(state), or on search.cell_depth(state, cells)."""
    rows = rows_of_channels(reference)
    maps = tuple(rows_of_channels(s) for s in sources)
    batch, height, width, channels = rows.shape
    bins = state.num_bins if cells is None else cells.shape[1]
    padded = triton.next_power_of_2(bins)
    block = max(1, (256 if channels <= 8 else 64) // padded)  # pixels of a program
    if output is None:
        volume = rows.new_empty(batch, bins, height, width, groups)
        strides = (volume.stride(0), volume.stride(1), groups)
    else:
        volume = output[..., : bins * groups].unflatten(-1, (bins, groups)).movedim(-2, 1)
        strides = (output.stride(0), groups, output.stride(2))
    _kernel[(triton.cdiv(height * width, block), batch)](
        rows, maps, tuple(m.stride(0) for m in maps), tuple(m.shape[1] for m in maps),
        tuple(m.shape[2] for m in maps), transforms.contiguous(),
        (state.cell if cells is None else cells).contiguous(), state.depth_range.contiguous(), *view_weight,
        volume, *strides, rows.stride(0), height, width,
        state.grid.cells(state.stage + (cells is None)), scale,
        S=len(maps), C=channels, CP=max(8, triton.next_power_of_2(channels)), G=groups, D=bins, DP=padded,
        FIRST=state.stage == 0, TOLERANCE=state.grid.tolerance, INVERSE=state.grid.inverse,
        GIVEN=cells is not None, BLOCK=block,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    return volume.permute(0, 4, 1, 2, 3)
