"""Smallest and largest values around in one pass. The kernel of ops/extrema.py; no gradient."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def _ends(
    values,  # [B, h, w]
    output,  # [B, 2, h * FACTOR, w * FACTOR]
    height,
    width,
    REACH: tl.constexpr,
    FACTOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    values += batch * height * width
    size = height * width * FACTOR * FACTOR
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < size
    y = pixel // (width * FACTOR) // FACTOR
    x = pixel % (width * FACTOR) // FACTOR
    least = tl.load(values + y * width + x, mask=keep, other=0)
    most = least
    for row in tl.static_range(-REACH, REACH + 1):
        line = values + tl.minimum(tl.maximum(y + row, 0), height - 1) * width
        for column in tl.static_range(-REACH, REACH + 1):
            place = line + tl.minimum(tl.maximum(x + column, 0), width - 1)
            value = tl.load(place, mask=keep, other=0)
            least = tl.minimum(least, value)
            most = tl.maximum(most, value)
    tl.store(output + batch * 2 * size + pixel, least, mask=keep)
    tl.store(output + batch * 2 * size + size + pixel, most, mask=keep)


def local_extrema(values: Tensor, reach: int, factor: int) -> Tensor:
    """values [B, h, w] -> [B, 2, h * factor, w * factor]."""
    values = values.contiguous()
    batch, height, width = values.shape
    output = values.new_empty(batch, 2, height * factor, width * factor)
    _ends[(triton.cdiv(height * width * factor * factor, _BLOCK), batch)](
        values, output, height, width, REACH=reach, FACTOR=factor, BLOCK=_BLOCK
    )
    return output
