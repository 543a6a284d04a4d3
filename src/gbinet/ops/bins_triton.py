"""Bins inside kernels: depths as ops/bins.py computes them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def depth_of(position, near, far, INVERSE: tl.constexpr):
    """Position in [0, 1] of the range -> depth."""
    return 1 / ((1 - position) / near + position / far) if INVERSE else near + position * (far - near)


@triton.jit
def bin_depth(
    cell,
    near,
    far,
    d,
    cells,
    FACTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    INVERSE: tl.constexpr,
    APART: tl.constexpr,
):
    """Centre of bin d of each pixel; APART: of the cell itself."""
    if APART:
        return depth_of((cell.to(tl.float32) + 0.5) / cells, near, far, INVERSE)
    first = FACTOR * cell + SHIFT
    low = tl.minimum(tl.maximum(first + d, 0), cells).to(tl.float32) / cells
    high = tl.minimum(tl.maximum(first + d + 1, 0), cells).to(tl.float32) / cells
    return depth_of((low + high) / 2, near, far, INVERSE)
