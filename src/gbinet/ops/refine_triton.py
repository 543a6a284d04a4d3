"""Input of the refiner's network and refined cells from its output. Kernels of ops/refine.py; no gradient."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.layout import pixel_rows
from gbinet.ops.parents_triton import saturated
from gbinet.ops.refine import FAR, NEAR, input_channels

_BLOCK = 128


@triton.jit
def _inputs(
    places,  # [B, N, h, w] float32
    sure,  # [B, 2, h, w] float32
    reference,  # [B, h, w, C]
    output,  # [B, h, w, WIDTH]
    reference_stride,  # between batches
    pixels,  # h * w
    N: tl.constexpr,
    SMOOTHINGS: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    FIRST: tl.constexpr,  # channels before the reference's
    FP: tl.constexpr,
    WIDTH: tl.constexpr,
    RP: tl.constexpr,  # channels after them, padded
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < pixels
    rows = output + batch * pixels * WIDTH + (pixel.to(tl.int64) * WIDTH)[:, None]
    kind = output.dtype.element_ty
    places += batch * N * pixels + pixel
    f = tl.arange(0, FP)[None, :]
    found = tl.zeros((BLOCK, FP), dtype=tl.float32)
    first = tl.load(places, mask=keep, other=0.0)
    before = first
    for i in tl.static_range(1, N):
        own = tl.load(places + i * pixels, mask=keep, other=0.0)
        found += tl.where(f == i - 1, saturated((own - first) / NEAR)[:, None], 0.0)
        if i >= 2:
            # Of smoothings the step from the one before, of sides their distance on a larger scale.
            more = own - before if i < SMOOTHINGS else (own - first) / FAR
            found += tl.where(f == N - 3 + i, saturated(more)[:, None], 0.0)
        before = own
    for i in tl.static_range(2):
        value = tl.load(sure + (batch * 2 + i) * pixels + pixel, mask=keep, other=0.0)
        found += tl.where(f == FIRST - 2 + i, value[:, None], 0.0)
    tl.store(rows + f, found.to(kind), mask=keep[:, None] & (f < FIRST))
    c = tl.arange(0, CP)[None, :]
    mask = keep[:, None] & (c < C)
    seen = tl.load(reference + batch * reference_stride + (pixel * C)[:, None] + c, mask=mask, other=0.0)
    tl.store(rows + FIRST + c, seen.to(kind), mask=mask)
    r = tl.arange(0, RP)[None, :]
    nothing = tl.zeros((BLOCK, RP), dtype=kind)
    tl.store(rows + FIRST + C + r, nothing, mask=keep[:, None] & (r < WIDTH - FIRST - C))


def inputs(
    candidates: Tensor,  # [B, N, h, w] float32
    smoothings: int,
    confidences: Tensor,  # [B, 2, h, w]
    reference: Tensor,  # [B, C, h, w]
    total: int,  # channels of the result
) -> Tensor:  # [B, total, h, w], channels last
    rows = pixel_rows(reference)
    batch, height, width, channels = rows.shape
    count = candidates.shape[1]
    first = input_channels(count, 0)
    output = rows.new_empty(batch, height, width, total)
    _inputs[(triton.cdiv(height * width, _BLOCK), batch)](
        candidates.contiguous(), confidences.float().contiguous(), rows, output, rows.stride(0),
        height * width, N=count, SMOOTHINGS=smoothings, NEAR=NEAR, FAR=FAR, C=channels,
        CP=triton.next_power_of_2(channels), FIRST=first, FP=triton.next_power_of_2(first), WIDTH=total,
        RP=triton.next_power_of_2(max(1, total - first - channels)), BLOCK=_BLOCK,
    )  # fmt: skip
    return output.permute(0, 3, 1, 2)


@triton.jit
def _mixed(
    said,  # [B, N + 1 + MORE, h, w]
    places,  # [B, N, h, w] float32
    place,  # [B, h, w] float32
    logit,  # [B, MORE, h, w] float32
    pixels,  # h * w
    N: tl.constexpr,
    MORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < pixels
    said += batch * (N + 1 + MORE) * pixels + pixel
    places += batch * N * pixels + pixel
    best = tl.load(said, mask=keep, other=0.0).to(tl.float32)
    for i in tl.static_range(1, N):
        best = tl.maximum(best, tl.load(said + i * pixels, mask=keep, other=0.0).to(tl.float32))
    first = tl.load(places, mask=keep, other=0.0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(N):
        share = tl.exp(tl.load(said + i * pixels, mask=keep, other=0.0).to(tl.float32) - best)
        total += share
        mean += share * (tl.load(places + i * pixels, mask=keep, other=0.0) - first)
    added = tl.load(said + N * pixels, mask=keep, other=0.0).to(tl.float32)
    tl.store(place + batch * pixels + pixel, first + mean / total + added, mask=keep)
    if MORE:
        last = tl.load(said + (N + 1) * pixels, mask=keep, other=0.0).to(tl.float32)
        tl.store(logit + batch * pixels + pixel, last, mask=keep)


def refined(output: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """output [B, N + 1 or N + 2, h, w], candidates [B, N, h, w] -> [B, h, w], [B, 0 or 1, h, w], float32."""
    batch, count, height, width = candidates.shape
    more = output.shape[1] - count - 1
    cells = candidates.new_empty(batch, height, width)
    logit = candidates.new_empty(batch, more, height, width)
    _mixed[(triton.cdiv(height * width, _BLOCK), batch)](
        output.contiguous(), candidates.contiguous(), cells, logit, height * width, N=count, MORE=more,
        BLOCK=_BLOCK,
    )  # fmt: skip
    return cells, logit
