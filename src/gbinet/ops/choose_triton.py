"""What a stage decides, in one pass over its logits. The kernel of ops/choose.py.

No volume in float32 is ever written. No gradient: states carry none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.bins import Bins

_BLOCK = 256


@triton.jit
def _kernel(
    logits,  # [B, D, H, W], rows of pixels contiguous
    cell,  # [B, H, W] int32
    next_cell,  # [B, H, W] int32; PLACE: float32, where in the cells the answer lies
    confidence,  # [B, H, W] float32
    batch_stride,
    bin_stride,
    row_stride,
    height,
    width,
    cells,  # of the whole range
    D: tl.constexpr,
    FACTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    NEARBY: tl.constexpr,  # confidence is of the most probable bin and its neighbours, not of that bin alone
    PLACE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < height * width
    at = batch * height * width + pixel
    base = logits + batch * batch_stride + pixel // width * row_stride + pixel % width
    best = tl.load(base, mask=keep, other=0.0).to(tl.float32)
    choice = tl.zeros((BLOCK,), dtype=tl.int32)
    for d in range(1, D):
        value = tl.load(base + d * bin_stride, mask=keep, other=0.0).to(tl.float32)
        choice = tl.where(value > best, d, choice)  # of equal ones the first
        best = tl.maximum(best, value)
    first = FACTOR * tl.load(cell + at, mask=keep, other=0) + SHIFT
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    around = tl.zeros((BLOCK,), dtype=tl.float32)  # the part of the total in the choice and its neighbours
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    for d in range(D):
        value = tl.load(base + d * bin_stride, mask=keep, other=0.0).to(tl.float32)
        weight = tl.exp(value - best)
        total += weight
        near_choice = tl.where((d - choice <= 1) & (choice - d <= 1), weight, 0.0)
        around += near_choice
        mean += near_choice * d
    if PLACE:
        tl.store(next_cell + at, first.to(tl.float32) + mean / around + 0.5, mask=keep)
    else:
        tl.store(next_cell + at, tl.minimum(tl.maximum(first + choice, 0), cells - 1), mask=keep)
    tl.store(confidence + at, (around if NEARBY else 1.0) / total, mask=keep)


def choose(bins: Bins, logits: Tensor, nearby: bool, fractional: bool) -> tuple[Tensor, Tensor]:
    """Cells or fractional cells [B, H, W] and confidence [B, 1, H, W]; logits of any floating type."""
    cell = bins.cell.contiguous()
    chosen = torch.empty_like(cell, dtype=torch.float32 if fractional else cell.dtype)
    confidence = torch.empty_like(cell, dtype=torch.float32)
    if logits.stride(3) != 1:
        logits = logits.contiguous()
    batch, count, height, width = logits.shape
    _kernel[(triton.cdiv(height * width, _BLOCK), batch)](
        logits, cell, chosen, confidence, *logits.stride()[:3], height, width, bins.cells, D=count,
        FACTOR=bins.factor, SHIFT=bins.shift, NEARBY=nearby, PLACE=fractional, BLOCK=_BLOCK,
    )  # fmt: skip
    return chosen, confidence[:, None]
