"""Convolutions with few channels, 2D and 3D, with bias, ReLU and skip connection in the same pass.

cuDNN is slow where channels are few, above all for 8 -> 1 (docs/benchmarks/speed.md), and bias, ReLU and
addition are passes of their own there. Inference only. The kernels of ops/conv.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.launch_triton import dot_precision, dot_size
from gbinet.ops.layout import voxel_rows

# Volumes are [B, D, H, W, C] in memory (channels_last_3d); an image is a volume with D = 1. Weights are
# [kd, kh, kw, I, O]: the taps along a row times the channels lie side by side, as they do in the volume.
_SIZES = ("height", "width", "out_height", "out_width")  # a kernel compiled once serves images of all sizes


@triton.jit
def _epilogue(
    total,  # [BLOCK, OP]
    bias,
    skip,
    output,
    row,  # [BLOCK]: where the first channel of each output voxel lies
    out,
    keep,
    O: tl.constexpr,  # noqa: E741
    RELU: tl.constexpr,
    SKIP: tl.constexpr,
    channel_step=1,  # from one channel of a voxel to the next; 1: side by side
):
    """Bias, ReLU, addition of the skip connection, store."""
    total += tl.load(bias + out, mask=out < O, other=0.0)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    mask = keep[:, None] & (out < O)[None, :]
    place = row[:, None] + out[None, :] * channel_step
    if SKIP:
        total += tl.load(skip + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + place, total.to(output.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _conv_kernel(
    volume,  # [B, D, H, W, I]
    weights,  # [KD, K, K, I, O]
    bias,  # [O] float32
    skip,  # [B, D, h, w, O]
    output,  # [B, D, h, w, O]
    depth,
    height,
    width,
    out_height,
    out_width,
    STRIDE: tl.constexpr,
    KD: tl.constexpr,  # taps in depth: 1 or 3
    K: tl.constexpr,  # taps in height and width
    I: tl.constexpr,  # noqa: E741  # the letters of the shapes above
    O: tl.constexpr,  # noqa: E741
    OP: tl.constexpr,
    TAPS: tl.constexpr,  # taps along a row that one matrix product takes: K or 1
    KP: tl.constexpr,  # TAPS * I, padded
    RELU: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    PLANAR: tl.constexpr,  # write [B, O, h, w] instead; depth is 1
    DILATION: tl.constexpr,  # in height and width; other than 1 only with TAPS = 1
):
    plane = tl.program_id(1)  # b * D + d
    d = plane % depth
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < out_height * out_width
    y = pixel // out_width * STRIDE
    x = pixel % out_width * STRIDE
    k = tl.arange(0, KP)
    out = tl.arange(0, OP)
    total = tl.zeros((BLOCK, OP), dtype=tl.float32)
    for kd in range(KD):
        source_d = d + kd - KD // 2
        if (source_d >= 0) & (source_d < depth):
            base = volume + (plane + kd - KD // 2).to(tl.int64) * height * width * I
            for kh in range(K):
                row = y + (kh - K // 2) * DILATION
                row_inside = (row >= 0) & (row < height) & keep
                for kw in tl.static_range(0, K, TAPS):
                    left = x + (kw - K // 2) * DILATION
                    column = left[:, None] + (k // I)[None, :]
                    inside = row_inside[:, None] & (column >= 0) & (column < width) & (k < TAPS * I)[None, :]
                    pointers = base + ((row * width + left) * I)[:, None] + k[None, :]
                    values = tl.load(pointers, mask=inside, other=0.0)
                    tap = ((kd * K + kh) * K + kw) * I + k
                    matrix = tl.load(
                        weights + tap[:, None] * O + out[None, :],
                        mask=(k < TAPS * I)[:, None] & (out < O)[None, :],
                        other=0.0,
                    )
                    total += tl.dot(values, matrix, input_precision=PRECISION)
    size = out_height * out_width
    if PLANAR:
        first = plane.to(tl.int64) * size * O + pixel
        _epilogue(total, bias, skip, output, first, out, keep, O, RELU, SKIP, size)
    else:
        first = (plane.to(tl.int64) * size + pixel) * O
        _epilogue(total, bias, skip, output, first, out, keep, O, RELU, SKIP)


@triton.jit(do_not_specialize=_SIZES)
def _up_kernel(
    volume,  # [B, D, H, W, I]
    weights,  # [3, 3, 3, I, O]
    bias,  # [O] float32
    skip,  # [B, D, 2H, 2W, O]
    output,  # [B, D, 2H, 2W, O]
    depth,
    height,
    width,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    IP: tl.constexpr,
    OP: tl.constexpr,
    RELU: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Transposed, stride 2 in space. One program: output pixels of one parity, e.g. even rows, odd columns.

    y_out = 2 y_in - 1 + kh: even rows come from kh = 1 alone, odd ones from kh = 0 (the row below) and 2.
    """
    plane = tl.program_id(1)
    parity = tl.program_id(2)
    odd_y = parity // 2
    odd_x = parity % 2
    d = plane % depth
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of the input
    keep = pixel < height * width
    y = pixel // width
    x = pixel % width
    channel = tl.arange(0, IP)
    out = tl.arange(0, OP)
    total = tl.zeros((BLOCK, OP), dtype=tl.float32)
    for kd in range(3):
        source_d = d + 1 - kd
        if (source_d >= 0) & (source_d < depth):
            base = volume + (plane + 1 - kd).to(tl.int64) * height * width * I
            for step_y in range(odd_y + 1):
                kh = tl.where(odd_y == 0, 1, 2 * step_y)
                row = y + tl.where((odd_y == 1) & (step_y == 0), 1, 0)
                for step_x in range(odd_x + 1):
                    kw = tl.where(odd_x == 0, 1, 2 * step_x)
                    column = x + tl.where((odd_x == 1) & (step_x == 0), 1, 0)
                    inside = keep & (row < height) & (column < width)
                    pointers = base + ((row * width + column) * I)[:, None] + channel[None, :]
                    mask = inside[:, None] & (channel < I)[None, :]
                    values = tl.load(pointers, mask=mask, other=0.0)
                    tap = ((kd * 3 + kh) * 3 + kw) * I + channel
                    matrix = tl.load(
                        weights + tap[:, None] * O + out[None, :],
                        mask=(channel < I)[:, None] & (out < O)[None, :],
                        other=0.0,
                    )
                    total += tl.dot(values, matrix, input_precision=PRECISION)
    voxel = (plane.to(tl.int64) * 2 * height + 2 * y + odd_y) * 2 * width + 2 * x + odd_x
    _epilogue(total, bias, skip, output, voxel * O, out, keep, O, RELU, SKIP)


def conv3d(
    volume: Tensor,  # [B, I, D, H, W]
    packed: Tensor,  # [1 or 3, k, k, I, O]
    bias: Tensor,  # [O] float32
    *,
    stride: int = 1,
    dilation: int = 1,  # in space
    relu: bool = True,
    skip: Tensor | None = None,  # [B, O, D, h, w], added after the ReLU
    planar: bool = False,  # D = 1, no skip: the result is contiguous, not channels last
) -> Tensor:  # [B, O, D, h, w]
    """Convolution with 'same' padding and stride in space."""
    rows = voxel_rows(volume)
    batch, depth, height, width, inputs = rows.shape
    depth_taps, kernel, _, _, outputs = packed.shape
    out_height, out_width = -(-height // stride), -(-width // stride)
    output = rows.new_empty(batch, depth, out_height, out_width, outputs)
    taps = kernel if kernel * inputs <= 64 and dilation == 1 else 1
    block = _block(rows)
    grid = (triton.cdiv(out_height * out_width, block), batch * depth)
    _conv_kernel[grid](
        rows, packed, bias, output if skip is None else voxel_rows(skip), output, depth, height, width,
        out_height, out_width, STRIDE=stride, KD=depth_taps, K=kernel, TAPS=taps, KP=dot_size(taps * inputs),
        PLANAR=planar, DILATION=dilation,
        **_sizes(packed, relu, skip is not None, block), num_stages=_stages(taps * inputs, outputs),
    )  # fmt: skip
    if planar:
        assert depth == 1 and skip is None
        return output.view(batch, outputs, 1, out_height, out_width)
    return output.permute(0, 4, 1, 2, 3)


def conv_transpose3d_into(
    volume: Tensor,  # [B, I, D, H, W]
    packed: Tensor,  # [3, 3, 3, I, O]
    bias: Tensor,  # [O] float32
    skip: Tensor,  # [B, O, D, 2H, 2W]: added after the ReLU, and written over: no memory for the result
) -> Tensor:  # [B, O, D, 2H, 2W]
    """Transposed 3x3x3 convolution that doubles height and width, and ReLU."""
    rows = voxel_rows(volume)
    batch, depth, height, width, inputs = rows.shape
    output = voxel_rows(skip)  # every voxel is read and then written by the same thread
    block = _block(rows)
    grid = (triton.cdiv(height * width, block), batch * depth, 4)
    _up_kernel[grid](
        rows, packed, bias, output, output, depth, height, width,
        IP=dot_size(inputs), **_sizes(packed, True, True, block), num_stages=2,
    )  # fmt: skip
    return output.permute(0, 4, 1, 2, 3)


def _stages(inputs: int, outputs: int) -> int:
    """Stages of loading ahead: not worth it for few channels, too much shared memory for many."""
    return 2 if inputs > 32 and inputs * outputs < 128 * 128 else 1


def _block(rows: Tensor) -> int:
    """Voxels per program; float32 takes twice the shared memory, and is rarely used."""
    return 128 if rows.element_size() == 2 else 32


def _sizes(packed: Tensor, relu: bool, skip: bool, block: int) -> dict[str, int | str | bool]:
    inputs, outputs = packed.shape[-2:]
    return {
        "I": inputs,
        "O": outputs,
        "OP": dot_size(outputs),
        "RELU": relu,
        "SKIP": skip,
        "BLOCK": block,
        "PRECISION": dot_precision(packed.dtype),
    }
