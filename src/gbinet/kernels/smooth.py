"""Small maps of cells between two stages, in one pass each: smoothing, and enlarging that keeps edges.

Twins of model/smoothing.py and of the doubling in model/search.py. No gradient: states carry none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def _smooth(
    values,  # [B, H, W] float32
    output,  # [B, H, W] float32
    height,
    width,
    reach,
    RADIUS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64) * height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < height * width
    y = pixel // width
    x = pixel % width
    own = tl.load(values + image + pixel, mask=keep, other=0.0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    weights = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in tl.static_range(-RADIUS, RADIUS + 1):
        line = image + tl.minimum(tl.maximum(y + row, 0), height - 1) * width
        for column in tl.static_range(-RADIUS, RADIUS + 1):
            if row * row + column * column <= RADIUS * (RADIUS + 1):  # model.smoothing.disc
                place = line + tl.minimum(tl.maximum(x + column, 0), width - 1)
                away = tl.load(values + place, mask=keep, other=0.0) - own
                weight = tl.maximum(1 - (away / reach) * (away / reach), 0.0)
                weight = weight * weight
                weights += weight
                total += weight * away
    tl.store(output + image + pixel, own + total / weights, mask=keep)


def smooth(values: Tensor, radius: int, reach: float) -> Tensor:
    """values [B, H, W] float32 -> [B, H, W]: means over discs, without what is `reach` away or more."""
    values = values.contiguous()
    batch, height, width = values.shape
    output = torch.empty_like(values)
    _smooth[(triton.cdiv(height * width, _BLOCK), batch)](
        values, output, height, width, float(reach), RADIUS=radius, BLOCK=_BLOCK
    )
    return output


@triton.jit
def _part(cells, own, place, share, edge, keep):
    """A neighbour's weighted cell and its weight: nothing where it is on the other side of an edge."""
    other = tl.load(cells + place, mask=keep, other=0).to(tl.float32)
    weight = tl.where(tl.abs(other - own) <= edge, share, 0.0)
    return weight * other, weight


@triton.jit
def _double(
    cells,  # [B, h, w] int32
    output,  # [B, 2 h, 2 w] int32
    height,  # h, of the coarse map
    width,
    edge,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < 4 * height * width
    y = pixel // (2 * width)
    x = pixel % (2 * width)
    row = y // 2
    column = x // 2
    # An upper left pixel looks up and left, and so on; beyond the border the border is repeated.
    beside = tl.minimum(tl.maximum(tl.where(x % 2 == 0, column - 1, column + 1), 0), width - 1)
    across = tl.minimum(tl.maximum(tl.where(y % 2 == 0, row - 1, row + 1), 0), height - 1)
    base = batch * height * width
    own = tl.load(cells + base + row * width + column, mask=keep, other=0).to(tl.float32)
    beside_sum, beside_weight = _part(cells, own, base + row * width + beside, 3.0, edge, keep)
    across_sum, across_weight = _part(cells, own, base + across * width + column, 3.0, edge, keep)
    corner_sum, corner_weight = _part(cells, own, base + across * width + beside, 1.0, edge, keep)
    total = 9 * own + beside_sum + across_sum + corner_sum
    weight = 9 + beside_weight + across_weight + corner_weight
    mean = tl.floor(tl.div_rn(total, weight) + 0.5)
    tl.store(output + batch * 4 * height * width + pixel, mean.to(tl.int32), mask=keep)


def double(cells: Tensor, edge: int) -> Tensor:
    """Cells [B, h, w] at twice the size, [B, 2 h, 2 w]: bilinear among those within `edge` of the own one."""
    cells = cells.contiguous()
    batch, height, width = cells.shape
    output = cells.new_empty(batch, 2 * height, 2 * width)
    _double[(triton.cdiv(4 * height * width, _BLOCK), batch)](
        cells, output, height, width, float(edge), BLOCK=_BLOCK
    )
    return output
