"""3D convolutions of volumes with few planes and few channels, as 2D convolutions over planes times channels.

A stage has four planes (hypotheses) of 4 to 16 channels. With all of them side by side, a 3x3x3 kernel is a
3x3 kernel of a few dozen channels whose matrix is zero where planes lie more than one apart. Each voxel is
then read for all output planes at once, where conv_triton.py reads it once for each, and few columns of a
product are padding. Inference only. A kernel of ops/conv.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.launch_triton import dot_precision, dot_size
from gbinet.ops.layout import voxel_rows

# Volumes are [B, D, H, W, C] in memory (channels_last_3d). A program works on a tile of pixels, all planes.
_SIZES = ("height", "width", "out_height", "out_width")  # a kernel compiled once serves images of all sizes
_TILE_WIDTH = 32
_BLOCK = 256  # pixels of a program
_LARGEST = 64  # planes times channels, on either side


@triton.jit(do_not_specialize=_SIZES)
def _conv_kernel(
    volume,  # [B, D, H, W, I]
    weights,  # [9, KP, NP]
    bias,  # [NP] float32: repeated for each plane
    output,  # [B, D, h, w, O]
    height,
    width,
    out_height,
    out_width,
    STRIDE: tl.constexpr,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    KP: tl.constexpr,
    NP: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    p = tl.arange(0, BLOCK)
    y = tl.program_id(1) * (BLOCK // TILE_WIDTH) + p // TILE_WIDTH
    x = tl.program_id(0) * TILE_WIDTH + p % TILE_WIDTH
    keep = (y < out_height) & (x < out_width)
    k = tl.arange(0, KP)
    n = tl.arange(0, NP)
    planes = k // I * height * width * I + k % I
    base = volume + batch * D * height * width * I
    total = tl.zeros((BLOCK, NP), dtype=tl.float32)
    for tap in range(9):
        row = y * STRIDE + tap // 3 - 1
        column = x * STRIDE + tap % 3 - 1
        inside = keep & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        pointers = base + ((row * width + column) * I)[:, None] + planes[None, :]
        values = tl.load(pointers, mask=inside[:, None] & (k < D * I)[None, :], other=0.0)
        matrix = tl.load(weights + (tap * KP + k)[:, None] * NP + n[None, :])
        total += tl.dot(values, matrix, input_precision=PRECISION)
    total += tl.load(bias + n)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    plane_size = out_height * out_width
    output += batch * D * plane_size * O
    place = ((y * out_width + x) * O)[:, None] + (n // O * plane_size * O + n % O)[None, :]
    mask = keep[:, None] & (n < D * O)[None, :]
    tl.store(output + place, total.to(output.dtype.element_ty), mask=mask)


def suits(volume: Tensor, outputs: int) -> bool:
    """Whether to use this kernel for a 3x3x3 convolution of a volume [B, I, D, H, W]."""
    inputs, planes = volume.shape[1:3]
    elements = volume[0, 0].numel() * max(inputs, outputs)  # indices are 32 bits wide
    return planes * max(inputs, outputs) <= _LARGEST and elements < 2**31


def pack(packed: Tensor, bias: Tensor, planes: int) -> tuple[Tensor, Tensor]:
    """Packed weights [3, 3, 3, I, O] and bias [O] for volumes of `planes` planes: [9, KP, NP] and [NP].

    Input plane i contributes to output plane o through tap i - o + 1 in depth.
    """
    inputs, outputs = packed.shape[-2:]
    rows = dot_size(planes * inputs)
    columns = dot_size(planes * outputs)
    matrix = packed.new_zeros(9, rows, columns)
    for i in range(planes):
        for o in range(max(0, i - 1), min(planes, i + 2)):
            block = packed[i - o + 1].reshape(9, inputs, outputs)
            matrix[:, i * inputs : (i + 1) * inputs, o * outputs : (o + 1) * outputs] = block
    wide = bias.new_zeros(columns)
    wide[: planes * outputs] = bias.expand(outputs).repeat(planes)
    return matrix, wide


def conv3d(
    volume: Tensor,  # [B, I, D, H, W]
    matrix: Tensor,  # [9, KP, NP]
    bias: Tensor,  # [NP] float32
    outputs: int,
    *,
    stride: int = 1,
    relu: bool = True,
) -> Tensor:  # [B, O, D, h, w]
    """3x3x3 convolution with 'same' padding and stride in space."""
    rows = voxel_rows(volume)
    batch, depth, height, width, inputs = rows.shape
    out_height, out_width = -(-height // stride), -(-width // stride)
    output = rows.new_empty(batch, depth, out_height, out_width, outputs)
    grid = (triton.cdiv(out_width, _TILE_WIDTH), triton.cdiv(out_height, _BLOCK // _TILE_WIDTH), batch)
    _conv_kernel[grid](
        rows, matrix, bias, output, height, width, out_height, out_width, STRIDE=stride, D=depth, I=inputs,
        O=outputs, KP=matrix.shape[1], NP=matrix.shape[2], RELU=relu, BLOCK=_BLOCK, TILE_WIDTH=_TILE_WIDTH,
        PRECISION=dot_precision(rows.dtype), num_stages=2 if matrix.shape[1] > 32 else 1,
    )  # fmt: skip
    return output.permute(0, 4, 1, 2, 3)
