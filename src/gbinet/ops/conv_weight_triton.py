"""Gradient of a convolution's weights, for few channels. The kernel of ops/conv_training.py.

A program takes one tap in depth and walks down a strip of pixels; the three taps along a row, with their
channels, are the rows of one matrix. Every program writes its own sums, which are added up at the end: the
same numbers in every run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.launch_triton import dot_size
from gbinet.ops.layout import voxel_rows

# Volumes are [B, D, H, W, C] in memory (channels_last_3d); an image is a volume with D = 1.
_SIZES = ("depth", "height", "width", "fine_height", "fine_width", "rows")
_PROGRAMS = 1024  # that a GPU is kept busy with
_BLOCK = 64  # pixels of a row in one product
_STAGES = 2  # of loading ahead


@triton.jit(do_not_specialize=_SIZES)
def _kernel(
    fine,  # [B, D, STRIDE * H, STRIDE * W, I]
    coarse,  # [B, D, H, W, O]
    partial,  # [B, D, strips, blocks, KD, 3, KP, OP] float32
    depth,
    height,
    width,
    fine_height,
    fine_width,
    rows,  # of a strip
    STRIDE: tl.constexpr,
    DILATION: tl.constexpr,
    KD: tl.constexpr,  # taps in depth: 1 or 3
    I: tl.constexpr,  # noqa: E741  # the letters of the shapes above
    O: tl.constexpr,  # noqa: E741
    KP: tl.constexpr,  # more than 3 * I: one row of the matrix holds ones, for the bias
    OP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(2) // KD  # b * D + d
    kd = tl.program_id(2) % KD
    first = tl.program_id(1) * rows
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, KP)
    out = tl.arange(0, OP)
    d = plane % depth + kd - KD // 2
    seen = (d >= 0) & (d < depth)
    volume = fine + (plane + kd - KD // 2).to(tl.int64) * fine_height * fine_width * I
    upstream = coarse + plane.to(tl.int64) * height * width * O
    tap = k // I - 1
    column = (x * STRIDE)[:, None] + (tap * DILATION)[None, :]
    real = seen & (column >= 0) & (column < fine_width) & (k < 3 * I)[None, :]
    inner = column * I + (k % I)[None, :]
    ones = (k == 3 * I)[None, :]
    outer = x[:, None] * O + out[None, :]
    exists = (x < width)[:, None] & (out < O)[None, :]
    above = tl.zeros((KP, OP), dtype=tl.float32)
    own = tl.zeros((KP, OP), dtype=tl.float32)
    below = tl.zeros((KP, OP), dtype=tl.float32)
    for y in range(first, tl.minimum(first + rows, height)):
        grad = tl.load(upstream + y * width * O + outer, mask=exists, other=0.0)
        row = y * STRIDE
        inside = real & (row >= DILATION)
        values = tl.load(volume + (row - DILATION) * fine_width * I + inner, mask=inside, other=0.0)
        above = tl.dot(tl.trans(values), grad, above)
        values = tl.load(volume + row * fine_width * I + inner, mask=real, other=0.0)
        own = tl.dot(tl.trans(tl.where(ones, 1.0, values).to(values.dtype)), grad, own)
        inside = real & (row + DILATION < fine_height)
        values = tl.load(volume + (row + DILATION) * fine_width * I + inner, mask=inside, other=0.0)
        below = tl.dot(tl.trans(values), grad, below)
    strip = (plane * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    place = partial + (strip * KD + kd).to(tl.int64) * 3 * KP * OP + k[:, None] * OP + out[None, :]
    tl.store(place, above)
    tl.store(place + KP * OP, own)
    tl.store(place + 2 * KP * OP, below)


def weight_gradient(
    fine: Tensor,  # [B, I, D, STRIDE * H, STRIDE * W]
    coarse: Tensor,  # [B, O, D, H, W]
    depth_taps: int,  # 1 or 3
    *,
    stride: int = 1,
    dilation: int = 1,
) -> tuple[Tensor, Tensor]:
    """Sums over pixels p of fine[STRIDE * p + tap] times coarse[p], [I, O, depth taps, 3, 3], and of coarse
    [O]; float32. Of a convolution, fine is its input and coarse the gradient of its result."""
    inner, outer = (voxel_rows(volume) for volume in (fine, coarse))
    batch, depth, height, width, outputs = outer.shape
    fine_height, fine_width, inputs = inner.shape[2:]
    high, broad = triton.next_power_of_2(3 * inputs + 1), dot_size(outputs)
    across = triton.cdiv(width, _BLOCK)
    rows = max(4, across * height * batch * depth * depth_taps // _PROGRAMS)
    grid = (across, triton.cdiv(height, rows), batch * depth * depth_taps)
    partial = outer.new_empty(
        batch * depth * grid[1] * across, depth_taps, 3, high, broad, dtype=torch.float32
    )
    _kernel[grid](
        inner, outer, partial, depth, height, width, fine_height, fine_width, rows, STRIDE=stride,
        DILATION=dilation, KD=depth_taps, I=inputs, O=outputs, KP=high, OP=broad, BLOCK=_BLOCK,
        num_stages=_STAGES,
    )  # fmt: skip
    sums = partial.sum(0)
    taps = sums[:, :, : 3 * inputs, :outputs].reshape(depth_taps, 3, 3, inputs, outputs)
    return taps.permute(3, 4, 0, 1, 2), sums[depth_taps // 2, 1, 3 * inputs, :outputs]
