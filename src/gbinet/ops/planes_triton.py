"""3D convolutions of volumes with few planes and few channels, as 2D convolutions over planes times channels.

A stage has four planes (hypotheses) of 4 to 16 channels. With all of them side by side, a 3x3x3 kernel is a
3x3 kernel of a few dozen channels whose matrix is zero where planes lie more than one apart. Each voxel is
then read for all output planes at once, where conv_triton.py reads it once for each, and few columns of a
product are padding. Inference only. Kernels of ops/conv.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Volumes are [B, D, H, W, C] in memory (channels_last_3d). A program works on a tile of pixels, all planes.
_SIZES = ("height", "width", "out_height", "out_width")  # a kernel compiled once serves images of all sizes
_TILE_WIDTH = 32
_BLOCK, _UP_BLOCK = 256, 64  # pixels of a program; 64 with eight warps fails in Triton 3.6 (illegal access)
_LARGEST = 64  # planes times channels, on either side


@triton.jit
def _finish(
    total,  # [BLOCK, NP]
    bias,  # [NP] float32: repeated for each plane
    skip,
    output,
    pixel,  # [BLOCK]: index in the plane
    plane_size,
    keep,
    D: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    NP: tl.constexpr,
    RELU: tl.constexpr,
    SKIP: tl.constexpr,
):
    """Bias, ReLU, addition of the skip connection, store. skip and output may be the same memory."""
    n = tl.arange(0, NP)
    total += tl.load(bias + n)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    place = (pixel * O)[:, None] + (n // O * plane_size * O + n % O)[None, :]
    mask = keep[:, None] & (n < D * O)[None, :]
    if SKIP:
        total += tl.load(skip + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(output + place, total.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _values(base, row, column, planes, keep, height, width, I: tl.constexpr):  # noqa: E741
    """Where all planes and channels of the pixels (row, column) lie, [BLOCK, KP], and which exist."""
    inside = keep & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    pointers = base + ((row * width + column) * I)[:, None] + planes[None, :]
    return pointers, inside


@triton.jit(do_not_specialize=_SIZES)
def _conv_kernel(
    volume,  # [B, D, H, W, I]
    weights,  # [9, KP, NP]
    bias,  # [NP] float32
    skip,  # [B, D, h, w, O]
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
    SKIP: tl.constexpr,
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
        pointers, inside = _values(base, row, column, planes, keep, height, width, I)
        values = tl.load(pointers, mask=inside[:, None] & (k < D * I)[None, :], other=0.0)
        matrix = tl.load(weights + (tap * KP + k)[:, None] * NP + n[None, :])
        total += tl.dot(values, matrix, input_precision=PRECISION)
    plane_size = out_height * out_width
    start = batch * D * plane_size * O
    _finish(
        total, bias, skip + start, output + start, y * out_width + x, plane_size, keep, D, O, NP, RELU, SKIP
    )


@triton.jit(do_not_specialize=_SIZES)
def _up_kernel(
    volume,  # [B, D, H, W, I]
    weights,  # [9, KP, NP]
    bias,  # [NP] float32
    skip,  # [B, D, 2H, 2W, O]
    output,  # [B, D, 2H, 2W, O]
    height,
    width,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    KP: tl.constexpr,
    NP: tl.constexpr,
    RELU: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Transposed, stride 2 in space. One program: a tile of input pixels, the four output pixels of each.

    y_out = 2 y_in - 1 + kh: even rows come from kh = 1 alone, odd ones from kh = 2 and 0 (the row below).
    """
    batch = tl.program_id(2).to(tl.int64)
    p = tl.arange(0, BLOCK)
    y = tl.program_id(1) * (BLOCK // TILE_WIDTH) + p // TILE_WIDTH
    x = tl.program_id(0) * TILE_WIDTH + p % TILE_WIDTH
    keep = (y < height) & (x < width)
    k = tl.arange(0, KP)
    square = k[:, None] * NP + tl.arange(0, NP)[None, :]
    planes = k // I * height * width * I + k % I
    base = volume + batch * D * height * width * I
    even_even = tl.zeros((BLOCK, NP), dtype=tl.float32)
    even_odd = tl.zeros((BLOCK, NP), dtype=tl.float32)
    odd_even = tl.zeros((BLOCK, NP), dtype=tl.float32)
    odd_odd = tl.zeros((BLOCK, NP), dtype=tl.float32)
    for corner in tl.static_range(4):  # the pixel itself, its right, lower and lower right neighbour
        pointers, inside = _values(base, y + corner // 2, x + corner % 2, planes, keep, height, width, I)
        values = tl.load(pointers, mask=inside[:, None] & (k < D * I)[None, :], other=0.0)
        # Taps of odd rows: 2 on the row itself, 0 on the row below; of even ones: 1. Columns alike.
        down = (2 - 2 * (corner // 2)) * 3
        across = 2 - 2 * (corner % 2)
        matrix = tl.load(weights + (down + across) * KP * NP + square)
        odd_odd = tl.dot(values, matrix, odd_odd, input_precision=PRECISION)
        if corner // 2 == 0:
            matrix = tl.load(weights + (3 + across) * KP * NP + square)
            even_odd = tl.dot(values, matrix, even_odd, input_precision=PRECISION)
        if corner % 2 == 0:
            matrix = tl.load(weights + (down + 1) * KP * NP + square)
            odd_even = tl.dot(values, matrix, odd_even, input_precision=PRECISION)
        if corner == 0:
            matrix = tl.load(weights + 4 * KP * NP + square)
            even_even = tl.dot(values, matrix, even_even, input_precision=PRECISION)
    plane_size = 4 * height * width
    start = batch * D * plane_size * O
    skip += start
    output += start
    pixel = 4 * y * width + 2 * x
    _finish(even_even, bias, skip, output, pixel, plane_size, keep, D, O, NP, RELU, SKIP)
    _finish(even_odd, bias, skip, output, pixel + 1, plane_size, keep, D, O, NP, RELU, SKIP)
    pixel += 2 * width
    _finish(odd_even, bias, skip, output, pixel, plane_size, keep, D, O, NP, RELU, SKIP)
    _finish(odd_odd, bias, skip, output, pixel + 1, plane_size, keep, D, O, NP, RELU, SKIP)


def suits(volume: Tensor, outputs: int, transposed: bool = False) -> bool:
    """Whether these kernels should serve a 3x3x3 convolution of this volume [B, I, D, H, W]."""
    inputs, planes = volume.shape[1:3]
    voxels = volume[0, 0].numel()
    elements = voxels * max(inputs, 4 * outputs if transposed else outputs)  # indices are 32 bits wide
    return planes * max(inputs, outputs) <= _LARGEST and elements < 2**31


def pack(packed: Tensor, bias: Tensor, planes: int, transposed: bool = False) -> tuple[Tensor, Tensor]:
    """Packed weights [3, 3, 3, I, O] and bias [O] for volumes of `planes` planes: [9, KP, NP] and [NP].

    Input plane i gives to output plane o through tap i - o + 1 in depth; transposed, through o - i + 1.
    """
    inputs, outputs = packed.shape[-2:]
    rows = max(16, triton.next_power_of_2(planes * inputs))  # a matrix product needs 16 rows and columns
    columns = max(16, triton.next_power_of_2(planes * outputs))
    matrix = packed.new_zeros(9, rows, columns)
    for i in range(planes):
        for o in range(max(0, i - 1), min(planes, i + 2)):
            tap = o - i + 1 if transposed else i - o + 1
            block = packed[tap].reshape(9, inputs, outputs)
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
    rows = _rows(volume)
    batch, depth, height, width, _ = rows.shape
    out_height, out_width = -(-height // stride), -(-width // stride)
    output = rows.new_empty(batch, depth, out_height, out_width, outputs)
    sizes = _sizes(rows, matrix, outputs, relu, skip=False, block=_BLOCK)
    _conv_kernel[_grid(batch, out_height, out_width, _BLOCK)](
        rows, matrix, bias, output, output, height, width, out_height, out_width, STRIDE=stride, **sizes,
        num_stages=2 if matrix.shape[1] > 32 else 1,
    )  # fmt: skip
    return output.permute(0, 4, 1, 2, 3)


def conv_transpose3d_into(
    volume: Tensor,  # [B, I, D, H, W]
    matrix: Tensor,  # [9, KP, NP]
    bias: Tensor,  # [NP] float32
    target: Tensor,  # [B, O, D, 2H, 2W] in channels_last_3d: the skip connection, which is added to
) -> Tensor:
    """target += relu(transposed 3x3x3 convolution that doubles height and width); returns it."""
    rows, sum_rows = _rows(volume), target.permute(0, 2, 3, 4, 1)
    batch, _, height, width, _ = rows.shape
    if not sum_rows.is_contiguous():
        raise ValueError("the target's channels must lie side by side")
    sizes = _sizes(rows, matrix, target.shape[1], relu=True, skip=True, block=_UP_BLOCK)
    _up_kernel[_grid(batch, height, width, _UP_BLOCK)](
        rows, matrix, bias, sum_rows, sum_rows, height, width, **sizes
    )
    return target


def _grid(batch: int, height: int, width: int, block: int) -> tuple[int, int, int]:
    return triton.cdiv(width, _TILE_WIDTH), triton.cdiv(height, block // _TILE_WIDTH), batch


def _rows(volume: Tensor) -> Tensor:
    """[B, C, D, H, W] -> [B, D, H, W, C], contiguous; no copy for channels_last_3d."""
    return volume.permute(0, 2, 3, 4, 1).contiguous()


def _sizes(
    rows: Tensor, matrix: Tensor, outputs: int, relu: bool, skip: bool, block: int
) -> dict[str, int | str | bool]:
    return {
        "D": rows.shape[1],
        "I": rows.shape[4],
        "O": outputs,
        "KP": matrix.shape[1],
        "NP": matrix.shape[2],
        "RELU": relu,
        "SKIP": skip,
        "BLOCK": block,
        "TILE_WIDTH": _TILE_WIDTH,
        "PRECISION": "ieee" if rows.dtype == torch.float32 else "tf32",  # only float32 looks at it
    }
