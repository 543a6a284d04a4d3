"""3x3 and 3x3x3 convolutions of few channels, in strips: a program walks down and reads each row once.

A row of the input contributes to three rows of the result: the one below, the same and the one above. A
program keeps the sums of these three, so it reads a third of what a kernel reads that loads all rows around
each pixel, and computes a third of the addresses. One matrix product takes several taps or planes of a pixel
at once: the three taps along a row, or all planes of a volume. Half precision only. The kernel of ops/conv.py
and ops/conv_training.py for few channels.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.conv import StripWeights
from gbinet.ops.launch_triton import dot_size
from gbinet.ops.layout import voxel_rows

# Volumes are [B, D, H, W, C] in memory (channels_last_3d); an image is a volume with D = 1.
_SIZES = ("height", "width", "rows", "depth")  # a kernel compiled once serves images of all sizes
_LARGEST = 64  # rows of a matrix: taps or planes times channels
_PROGRAMS = 1024  # that a GPU is kept busy with
NO_SKIP, SKIP, SKIP_OF_ALL_PLANES = 0, 1, 2


@triton.jit
def _added(
    total, skip, number, depth, size, line, place, x, n, mask,
    N: tl.constexpr, O: tl.constexpr, STEP: tl.constexpr, SKIP: tl.constexpr,  # noqa: E741
):  # fmt: skip
    """A row [BLOCK, NP] with what is added after the ReLU."""
    if SKIP == 1:
        other = skip + number.to(tl.int64) * N * size + line * STEP
        total += tl.load(other + place, mask=mask, other=0.0).to(tl.float32)
    if SKIP == 2:
        other = skip + (number // depth).to(tl.int64) * O * size + line * O
        shared = (x * O)[:, None] + (n % O)[None, :]
        total += tl.load(other + shared, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=_SIZES)
def _kernel(
    volume,  # [B, depth or D, H, W, I]
    weights,  # [3, LOADS, KP, NP]
    bias,  # [NP] float32
    skip,  # as the output; SKIP 2: [B, H, W, O], the same for all planes
    output,  # [B, depth or D, H, W, O]
    height,
    width,
    rows,  # of a strip
    depth,  # planes of a volume that are worked on one by one
    D: tl.constexpr,  # planes of a volume that are worked on together
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    N: tl.constexpr,  # columns of the matrix in use: D * O
    STEP: tl.constexpr,  # channels of a voxel in the output: O; 1: the maps of an image, one after the other
    TAPS: tl.constexpr,  # taps along a row in one matrix: 3 or 1
    DEPTH_TAPS: tl.constexpr,  # matrices along depth: 3 or 1
    KP: tl.constexpr,
    NP: tl.constexpr,
    DILATION: tl.constexpr,
    RELU: tl.constexpr,
    SKIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    ACROSS: tl.constexpr = 3 // TAPS
    LOADS: tl.constexpr = DEPTH_TAPS * ACROSS
    strip = tl.program_id(1)
    number = tl.program_id(2)  # b * depth + d
    first = strip // DILATION * rows * DILATION + strip % DILATION  # rows of one strip are DILATION apart
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k, n = tl.arange(0, KP), tl.arange(0, NP)
    size = height * width
    tap = k // (D * I)
    inner = (tap * DILATION + k // I % D * size) * I + k % I
    start = volume + number.to(tl.int64) * D * size * I
    pointers = start + (((first - DILATION) * width + x - DILATION) * I)[:, None] + inner[None, :]
    column = x[:, None] + (tap * DILATION - DILATION)[None, :]
    real = (k < TAPS * D * I)[None, :]
    square = k[:, None] * NP + n[None, :]
    shift = tl.load(bias + n)[None, :]
    place = (x * STEP)[:, None] + (n // STEP * size * STEP + n % STEP)[None, :]
    result = output + number.to(tl.int64) * N * size
    matrices = ()
    for j in tl.static_range(3 * LOADS):
        matrices = matrices + (tl.load(weights + j * KP * NP + square),)  # type: ignore[assignment]  # noqa: RUF005
    below = tl.zeros((BLOCK, NP), dtype=tl.float32)
    above = tl.zeros((BLOCK, NP), dtype=tl.float32)
    for i in range(rows + 2):
        row = first + (i - 1) * DILATION
        own = below
        ahead = tl.zeros((BLOCK, NP), dtype=tl.float32)
        for j in tl.static_range(LOADS):
            plane = number % depth + j // ACROSS - DEPTH_TAPS // 2
            seen = (row >= 0) & (row < height) & (plane >= 0) & (plane < depth)
            across = j % ACROSS * DILATION
            inside = real & (column + across >= 0) & (column + across < width) & seen
            away = (j // ACROSS - DEPTH_TAPS // 2) * size * I + across * I
            values = tl.load(pointers + away, mask=inside, other=0.0)
            ahead = tl.dot(values, matrices[j], ahead)
            own = tl.dot(values, matrices[LOADS + j], own)
            above = tl.dot(values, matrices[2 * LOADS + j], above)
        if (i > 1) & (row - DILATION < height):
            line = (row - DILATION) * width
            mask = (x < width)[:, None] & (n < N)[None, :]
            total = tl.maximum(above + shift, 0.0) if RELU else above + shift
            total = _added(total, skip, number, depth, size, line, place, x, n, mask, N, O, STEP, SKIP)
            tl.store(result + line * STEP + place, total.to(output.dtype.element_ty), mask=mask)
        above, below = own, ahead
        pointers += DILATION * width * I


def suits(
    volume: Tensor,  # [B, I, D, H, W]
    packed: Tensor,  # [1 or 3, k, k, I, O]
    stride: int,
) -> bool:
    """Whether to use this kernel for a convolution."""
    kernel, inputs, outputs = packed.shape[2:]
    elements = volume[0, 0].numel() * max(inputs, outputs)  # indices are 32 bits wide
    few = inputs <= 24 and outputs <= 32
    is_half = volume.element_size() == 2  # float32: too much shared memory, and minutes to compile
    return kernel == 3 and stride == 1 and few and is_half and elements < 2**31


def pack(packed: Tensor, bias: Tensor, planes: int) -> StripWeights:
    """Packed weights [1 or 3, 3, 3, I, O] and bias [O] for volumes of `planes` planes."""
    depth_taps, _, _, inputs, outputs = packed.shape
    by_row = packed.transpose(0, 1)  # [kh, kd, kw, I, O]
    if depth_taps == 3 and planes * max(inputs, outputs) <= _LARGEST:
        # All planes at once: input plane i contributes to output plane o through tap i - o + 1 in depth.
        wide = packed.new_zeros(3, 3, planes, inputs, planes, outputs)  # [kh, kw, ...]
        for i in range(planes):
            for o in range(max(0, i - 1), min(planes, i + 2)):
                wide[:, :, i, :, o] = by_row[:, i - o + 1]
        square = wide.reshape(3, 3, planes * inputs, planes * outputs)
        return _padded(square, bias.repeat(planes), inputs, outputs, planes, 1, 1)
    taps = 3 if 3 * inputs <= _LARGEST else 1
    square = by_row.reshape(3, depth_taps * (3 // taps), taps * inputs, outputs)
    return _padded(square, bias, inputs, outputs, 1, taps, depth_taps)


def _padded(
    square: Tensor, bias: Tensor, inputs: int, outputs: int, planes: int, taps: int, depth_taps: int
) -> StripWeights:
    """With sizes that matrix products take."""
    *leading, rows, columns = square.shape
    high, broad = dot_size(rows), max(8, triton.next_power_of_2(columns))
    weights = square.new_zeros(*leading, high, broad)
    weights[..., :rows, :columns] = square
    wide_bias = bias.new_zeros(broad)
    wide_bias[:columns] = bias
    return StripWeights(weights, wide_bias, inputs, outputs, planes, taps, depth_taps)


def conv(
    volume: Tensor,  # [B, I, D, H, W]
    matrices: StripWeights,
    *,
    dilation: int = 1,  # in space
    relu: bool = True,
    skip: Tensor | None = None,  # [B, O, D or 1, H, W], added after the ReLU
    planar: bool = False,  # D = 1, no skip: the result is contiguous, not channels last
) -> Tensor:  # [B, O, D, H, W]
    """3x3 or 3x3x3 convolution with 'same' padding."""
    rows = voxel_rows(volume)
    batch, planes, height, width, inputs = rows.shape
    assert not planar or (planes == 1 and skip is None)
    m = matrices
    shape = (batch, m.outputs, planes, height, width)
    skip_rows = None if skip is None else voxel_rows(skip)
    output = rows.new_empty(shape if planar else (batch, planes, height, width, m.outputs))
    passes = planes // m.planes  # matrix products for one volume
    block = _block(m)
    across = triton.cdiv(width, block)
    strip = max(4, min(32, across * height * batch * passes // _PROGRAMS))
    strips = triton.cdiv(height, strip * dilation) * dilation
    _kernel[(across, strips, batch * passes)](
        rows, m.weights, m.bias, output if skip_rows is None else skip_rows, output, height, width, strip,
        passes, D=m.planes, I=inputs, O=m.outputs, N=m.planes * m.outputs, STEP=1 if planar else m.outputs,
        TAPS=m.taps, DEPTH_TAPS=m.depth_taps, KP=m.weights.shape[2], NP=m.weights.shape[3],
        DILATION=dilation, RELU=relu, SKIP=_skip_mode(skip, planes), BLOCK=block,
        num_stages=1,  # Triton 3.6 cannot compile more
    )  # fmt: skip
    return output if planar else output.permute(0, 4, 1, 2, 3)


def _block(matrices: StripWeights) -> int:
    """Pixels of a program with four warps: as many as leave room in the registers for several programs."""
    return 128 if matrices.weights.shape[3] <= 8 and matrices.weights.shape[2] <= 32 else 64


def _skip_mode(skip: Tensor | None, planes: int) -> int:
    if skip is None:
        return NO_SKIP
    return SKIP_OF_ALL_PLANES if skip.shape[2] == 1 < planes else SKIP
