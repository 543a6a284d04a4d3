"""Transposed 3x3x3 convolution that doubles height and width: four pixels of the result from one product.

A pixel of the volume and its right, lower and lower right neighbours determine four pixels of the result.
Neighbours along a row are adjacent in memory, and so are the results of a row: one matrix maps two pixels to
all four. Half precision only. The kernel of ops/conv.py and ops/conv_training.py for few channels.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.launch_triton import dot_size
from gbinet.ops.layout import voxel_rows

_LARGEST = 32  # outputs: the sums of four pixels stay in registers


@triton.jit(do_not_specialize=("height", "width", "depth"))
def _kernel(
    volume,  # [B, D, H, W, I]
    weights,  # [3, 2, KP, NP]
    bias,  # [NP] float32
    target,  # [B, D, 2H, 2W, O]
    depth,
    height,
    width,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    KP: tl.constexpr,
    NP: tl.constexpr,
    ADD: tl.constexpr,  # ReLU, and the result is added to the target
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(1)
    d = plane % depth
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of the volume
    size = height * width
    y = pixel // width
    x = pixel % width
    k = tl.arange(0, KP)
    n = tl.arange(0, NP)
    square = k[:, None] * NP + n[None, :]
    inside = (pixel < size)[:, None] & (x[:, None] + (k // I)[None, :] < width) & (k < 2 * I)[None, :]
    start = volume + plane.to(tl.int64) * size * I
    pointers = start + (pixel * I)[:, None] + k[None, :]
    total = tl.zeros((BLOCK, NP), dtype=tl.float32)
    for step in tl.static_range(6):
        source = d + 1 - step // 2
        down = step % 2
        seen = inside & ((y + down < height) & (source >= 0) & (source < depth))[:, None]
        values = tl.load(pointers + (down * width + (1 - step // 2) * size) * I, mask=seen, other=0.0)
        total = tl.dot(values, tl.load(weights + step * KP * NP + square), total)
    place = ((y * width * 2 + x) * 2 * O)[:, None] + (n // (2 * O) * 2 * width * O + n % (2 * O))[None, :]
    place += target + plane.to(tl.int64) * 4 * size * O
    mask = (pixel < size)[:, None] & (n < 4 * O)[None, :]
    if ADD:
        total = tl.maximum(total + tl.load(bias + n)[None, :], 0.0)
        total += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, total.to(target.dtype.element_ty), mask=mask)


def suits(volume: Tensor, outputs: int) -> bool:
    """Whether to use this kernel for a volume [B, I, D, H, W]."""
    elements = volume[0, 0].numel() * max(volume.shape[1], 4 * outputs)  # indices are 32 bits wide
    is_half = volume.element_size() == 2  # float32 takes minutes to compile
    return outputs <= _LARGEST and is_half and elements < 2**31


def pack(packed: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Packed weights [3, 3, 3, I, O] and bias [O] -> [3, 2, KP, NP] and [NP].

    y_out = 2 y_in - 1 + kh: even rows come from kh = 1 alone, odd ones from kh = 2 and 0 (the row below).
    Columns alike.
    """
    inputs, outputs = packed.shape[-2:]
    wide = packed.new_zeros(3, 2, 2, inputs, 2, 2, outputs)  # [kd, row, column, I, row, column, O]
    offsets_and_taps = ((0, 0, 1), (0, 1, 2), (1, 1, 0))  # offset in the volume, in the result, tap
    for down, row, kh in offsets_and_taps:
        for right, column, kw in offsets_and_taps:
            wide[:, down, right, :, row, column] = packed[:, kh, kw]
    high, broad = (dot_size(n) for n in (2 * inputs, 4 * outputs))
    weights = packed.new_zeros(3, 2, high, broad)
    weights[:, :, : 2 * inputs, : 4 * outputs] = wide.reshape(3, 2, 2 * inputs, 4 * outputs)
    wide_bias = bias.new_zeros(broad)
    wide_bias[: 4 * outputs] = bias.repeat(4)
    return weights, wide_bias


def conv_transpose3d_into(
    volume: Tensor,  # [B, I, D, H, W]
    weights: Tensor,  # [3, 2, KP, NP]
    bias: Tensor,  # [NP] float32
    target: Tensor,  # [B, O, D, 2H, 2W] in channels_last_3d: the skip connection, which is added to
) -> Tensor:
    """target += relu(transposed convolution of the volume); returns it."""
    sums = target.permute(0, 2, 3, 4, 1)
    if not sums.is_contiguous():
        raise ValueError("the target must be channels last")
    _launch(volume, weights, bias, sums, add=True)
    return target


def conv_transpose3d(volume: Tensor, weights: Tensor, outputs: int) -> Tensor:
    """The transposed convolution alone, without bias: [B, I, D, H, W] -> [B, O, D, 2H, 2W]."""
    batch, _, depth, height, width = volume.shape
    result = volume.new_empty(batch, depth, 2 * height, 2 * width, outputs)
    _launch(volume, weights, weights, result, add=False)
    return result.permute(0, 4, 1, 2, 3)


def _launch(volume: Tensor, weights: Tensor, bias: Tensor, target: Tensor, add: bool) -> None:
    rows = voxel_rows(volume)
    batch, depth, height, width, inputs = rows.shape
    block, warps = (128, 4) if weights.shape[3] <= 64 else (64, 4)
    _kernel[(triton.cdiv(height * width, block), batch * depth)](
        rows, weights, bias, target, depth, height, width, I=inputs, O=target.shape[-1], KP=weights.shape[2],
        NP=weights.shape[3], ADD=add, BLOCK=block, num_warps=warps, num_stages=1,
    )  # fmt: skip
