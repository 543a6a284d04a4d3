"""Bilinear sampling inside kernels: maps are [h, w, C] in memory, positions count pixels.

A pixel's centre (+0.5 in camera.py) is an integer here.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def corner(base, row, column, channel, keep, height, width, C: tl.constexpr):
    """Pointers [BLOCK, CP] to all channels of some pixels, and which of them exist."""
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & keep
    pointers = base + ((row * width + column) * C)[:, None] + channel[None, :]
    return pointers, inside[:, None] & (channel < C)[None, :]


@triton.jit
def corner_value(base, row, column, channel, keep, height, width, C: tl.constexpr):
    """Features [BLOCK, CP] float32 at integer positions; zero outside the map."""
    pointers, exist = corner(base, row, column, channel, keep, height, width, C)
    return tl.load(pointers, mask=exist, other=0.0).to(tl.float32)


@triton.jit
def sample(base, top, left, fy, fx, channel, keep, height, width, C: tl.constexpr):
    """Features [BLOCK, CP] between the pixels (top, left) and (top + 1, left + 1); fractions [BLOCK]."""
    a = corner_value(base, top, left, channel, keep, height, width, C)
    total = a * ((1 - fy) * (1 - fx))[:, None]
    a = corner_value(base, top, left + 1, channel, keep, height, width, C)
    total += a * ((1 - fy) * fx)[:, None]
    a = corner_value(base, top + 1, left, channel, keep, height, width, C)
    total += a * (fy * (1 - fx))[:, None]
    a = corner_value(base, top + 1, left + 1, channel, keep, height, width, C)
    total += a * (fy * fx)[:, None]
    return total


@triton.jit
def split(row, column, height, width):
    """Neighbour above left and the fractions towards the one below right.

    Far outside everything is zero; the clamp keeps the conversion to integers defined.
    """
    row = tl.minimum(tl.maximum(row, -2.0), height + 1.0)
    column = tl.minimum(tl.maximum(column, -2.0), width + 1.0)
    top = tl.floor(row)
    left = tl.floor(column)
    return top.to(tl.int32), left.to(tl.int32), row - top, column - left


@triton.jit
def project(t, x, y, depth, height, width, scale):
    """Where reference pixels with these depths fall in a source, as `split` gives it.

    t points to M row by row, then t of model/geometry.py; (x, y) are pixels of the images that it is of, and
    the source's map is `scale` times smaller.
    """
    z = (tl.load(t + 6) * x + tl.load(t + 7) * y + tl.load(t + 8)) * depth + tl.load(t + 11)
    front = z > 0
    safe = tl.where(front, z, 1.0)
    u = (tl.load(t + 0) * x + tl.load(t + 1) * y + tl.load(t + 2)) * depth + tl.load(t + 9)
    v = (tl.load(t + 3) * x + tl.load(t + 4) * y + tl.load(t + 5)) * depth + tl.load(t + 10)
    row = tl.where(front, v / safe / scale - 0.5, -2.0)
    column = tl.where(front, u / safe / scale - 0.5, -2.0)
    return split(row, column, height, width)
