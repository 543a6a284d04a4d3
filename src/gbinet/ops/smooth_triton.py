"""Smoothing of a map in one pass. The kernel of ops/smooth.py; no gradient: states carry none."""

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
    for row in tl.range(-RADIUS, RADIUS + 1, num_stages=1):  # unrolled, it takes seconds to compile
        line = image + tl.minimum(tl.maximum(y + row, 0), height - 1) * width
        for column in tl.static_range(-RADIUS, RADIUS + 1):
            seen = row * row + column * column <= RADIUS * (RADIUS + 1)  # smooth.disc
            place = line + tl.minimum(tl.maximum(x + column, 0), width - 1)
            away = tl.load(values + place, mask=keep & seen, other=0.0) - own
            weight = tl.maximum(1 - (away / reach) * (away / reach), 0.0)
            weight = tl.where(seen, weight * weight, 0.0)
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
