"""Input of the network that chooses parents, and the choice from its logits. Kernels of ops/parents.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.layout import pixel_rows

_BLOCK = 128


@triton.jit
def saturated(x):
    """Hyperbolic tangent."""
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _inputs(
    matches,  # [B, H, W, M]
    reference,  # [B, H, W, C]
    cells,  # [B, N, H, W]
    output,  # [B, H, W, WIDTH]
    reference_stride,  # between batches
    pixels,  # H * W
    M: tl.constexpr,
    MP: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    N: tl.constexpr,
    NEAR: tl.constexpr,
    WIDTH: tl.constexpr,
    RP: tl.constexpr,  # the rest of the width, padded
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < pixels
    rows = output + batch * pixels * WIDTH + (pixel.to(tl.int64) * WIDTH)[:, None]
    kind = output.dtype.element_ty
    m = tl.arange(0, MP)[None, :]
    mask = keep[:, None] & (m < M)
    own = tl.load(matches + batch * pixels * M + (pixel.to(tl.int64) * M)[:, None] + m, mask=mask, other=0.0)
    tl.store(rows + m, own.to(kind), mask=mask)
    c = tl.arange(0, CP)[None, :]
    mask = keep[:, None] & (c < C)
    seen = tl.load(reference + batch * reference_stride + (pixel * C)[:, None] + c, mask=mask, other=0.0)
    tl.store(rows + M + c, seen.to(kind), mask=mask)
    cells += batch * N * pixels + pixel
    first = tl.load(cells, mask=keep, other=0)
    r = tl.arange(0, RP)[None, :]
    rest = tl.zeros((BLOCK, RP), dtype=tl.float32)
    for i in tl.static_range(1, N):
        away = (tl.load(cells + i * pixels, mask=keep, other=0) - first).to(tl.float32) / NEAR
        rest += tl.where(r == i - 1, saturated(away)[:, None], 0.0)
    tl.store(rows + M + C + r, rest.to(kind), mask=keep[:, None] & (r < WIDTH - M - C))


def inputs(volume: Tensor, reference: Tensor, cells: Tensor, near: int, aligned: int) -> Tensor:
    """volume [B, G, N, H, W], reference [B, C, H, W], cells [B, N, H, W] -> [B, WIDTH, H, W]."""
    matches = volume.permute(0, 3, 4, 2, 1).contiguous().flatten(3)  # [B, H, W, N * G]; no copy as it comes
    rows = pixel_rows(reference)
    batch, height, width, channels = rows.shape
    count, used = cells.shape[1], matches.shape[3] + channels
    total = -(-(used + count - 1) // aligned) * aligned
    output = rows.new_empty(batch, height, width, total)
    _inputs[(triton.cdiv(height * width, _BLOCK), batch)](
        matches, rows, cells.contiguous(), output, rows.stride(0), height * width, M=matches.shape[3],
        MP=triton.next_power_of_2(matches.shape[3]), C=channels, CP=triton.next_power_of_2(channels), N=count,
        NEAR=near, WIDTH=total, RP=triton.next_power_of_2(total - used), BLOCK=_BLOCK,
    )  # fmt: skip
    return output.permute(0, 3, 1, 2)


@triton.jit
def _chosen(
    cells,  # [B, N, H, W] int32
    logits,  # [B, N, H, W]
    cell,  # [B, H, W] int32
    confidence,  # [B, H, W] float32
    pixels,  # H * W
    N: tl.constexpr,
    SAME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < pixels
    first = batch * N * pixels + pixel
    best = tl.load(logits + first, mask=keep, other=0.0).to(tl.float32)
    choice = tl.load(cells + first, mask=keep, other=0)
    for i in tl.static_range(1, N):
        value = tl.load(logits + first + i * pixels, mask=keep, other=0.0).to(tl.float32)
        choice = tl.where(value > best, tl.load(cells + first + i * pixels, mask=keep, other=0), choice)
        best = tl.maximum(best, value)  # of equal ones the first
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    same = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(N):
        value = tl.load(logits + first + i * pixels, mask=keep, other=0.0).to(tl.float32)
        share = tl.exp(value - best)
        away = tl.load(cells + first + i * pixels, mask=keep, other=0) - choice
        total += share
        same += tl.where((away <= SAME) & (away >= -SAME), share, 0.0)
    tl.store(cell + batch * pixels + pixel, choice, mask=keep)
    tl.store(confidence + batch * pixels + pixel, tl.minimum(same / total, 1.0), mask=keep)


def chosen(cells: Tensor, logits: Tensor, same: int) -> tuple[Tensor, Tensor]:
    """cells and logits [B, N, H, W] -> chosen cells [B, H, W], confidence [B, 1, H, W]."""
    batch, count, height, width = cells.shape
    cell = cells.new_empty(batch, height, width)
    confidence = torch.empty_like(cell, dtype=torch.float32)
    _chosen[(triton.cdiv(height * width, _BLOCK), batch)](
        cells.contiguous(), logits.contiguous(), cell, confidence, height * width, N=count, SAME=same,
        BLOCK=_BLOCK,
    )  # fmt: skip
    return cell, confidence[:, None]
