"""Upsampling of a map of cells in one pass. The kernel of ops/upsample.py; no gradient: states carry none."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


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


def upsample_cells(cells: Tensor, edge: int) -> Tensor:
    """Cells [B, h, w] int32 -> [B, 2 h, 2 w] int32."""
    cells = cells.contiguous()
    batch, height, width = cells.shape
    output = cells.new_empty(batch, 2 * height, 2 * width)
    _double[(triton.cdiv(4 * height * width, _BLOCK), batch)](
        cells, output, height, width, float(edge), BLOCK=_BLOCK
    )
    return output
