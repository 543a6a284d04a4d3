"""What a stage decides, in one pass over its logits: the most probable bin, how probable, next cell, depth.

No volume in float32 is ever written. Inference only. Twin of descend, nearby and expected_depth of
model/search.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.kernels.cost_volume import depth_of

if TYPE_CHECKING:
    from gbinet.model.search import SearchState

_BLOCK = 256


@triton.jit
def _kernel(
    logits,  # [B, D, H, W], rows of pixels contiguous
    cell,  # [B, H, W] int32
    depth_range,  # [B, 2]
    next_cell,  # [B, H, W] int32
    sure,  # [B, H, W] float32
    expected,  # [B, H, W] float32
    batch_stride,
    bin_stride,
    row_stride,
    height,
    width,
    cells,  # of the whole range, after this stage
    D: tl.constexpr,
    FIRST: tl.constexpr,
    TOLERANCE: tl.constexpr,
    INVERSE: tl.constexpr,
    NEARBY: tl.constexpr,  # `sure` is of the most probable bin and its neighbours, not of that bin alone
    EXPECTATION: tl.constexpr,  # write the expected depth; otherwise the next cell and how sure it is
    PLACE: tl.constexpr,  # instead of the next cell, write to `expected` where in the cells the answer lies
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < height * width
    place = batch * height * width + pixel
    base = logits + batch * batch_stride + pixel // width * row_stride + pixel % width
    best = tl.load(base, mask=keep, other=0.0).to(tl.float32)
    choice = tl.zeros((BLOCK,), dtype=tl.int32)
    for d in range(1, D):
        value = tl.load(base + d * bin_stride, mask=keep, other=0.0).to(tl.float32)
        choice = tl.where(value > best, d, choice)  # of equal ones the first
        best = tl.maximum(best, value)
    own = tl.load(cell + place, mask=keep, other=0)
    first = own if FIRST else 2 * own - TOLERANCE
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
    if EXPECTATION:
        position = (first.to(tl.float32) + mean / around + 0.5) / cells
        position = tl.minimum(tl.maximum(position, 0.0), 1.0)
        near = tl.load(depth_range + batch * 2)
        far = tl.load(depth_range + batch * 2 + 1)
        tl.store(expected + place, depth_of(position, near, far, INVERSE), mask=keep)
    elif PLACE:
        tl.store(expected + place, first.to(tl.float32) + mean / around + 0.5, mask=keep)
        tl.store(sure + place, (around if NEARBY else 1.0) / total, mask=keep)
    else:
        chosen = tl.minimum(tl.maximum(first + choice, 0), cells - 1)
        tl.store(next_cell + place, chosen, mask=keep)
        tl.store(sure + place, (around if NEARBY else 1.0) / total, mask=keep)


def choose(state: SearchState, logits: Tensor, nearby: bool = False) -> tuple[SearchState, Tensor]:
    """The state after descending into the most probable bin, and that bin's probability [B, 1, H, W].

    logits [B, D, H, W] of any floating type. nearby: the probability of its direct neighbours is added.
    """
    cell = state.cell.contiguous()
    chosen, sure = torch.empty_like(cell), torch.empty_like(cell, dtype=torch.float32)
    _launch(state, logits, cell, chosen, sure, sure, nearby=nearby)
    return replace(state, stage=state.stage + 1, cell=chosen, place=None), sure[:, None]


def expected_place(state: SearchState, logits: Tensor, nearby: bool = False) -> tuple[Tensor, Tensor]:
    """The continuous answer in cells [B, H, W], and the probability as above."""
    cell = state.cell.contiguous()
    place, sure = (torch.empty_like(cell, dtype=torch.float32) for _ in range(2))
    _launch(state, logits, cell, cell, sure, place, nearby=nearby, place=True)
    return place, sure[:, None]


def expected_depth(state: SearchState, logits: Tensor) -> Tensor:
    """Continuous depth [B, H, W] from the logits [B, D, H, W] of a stage."""
    cell = state.cell.contiguous()
    depth = torch.empty_like(cell, dtype=torch.float32)
    _launch(state, logits, cell, cell, depth, depth, expectation=True)
    return depth


def _launch(
    state: SearchState,
    logits: Tensor,
    cell: Tensor,
    chosen: Tensor,
    sure: Tensor,
    expected: Tensor,
    nearby: bool = False,
    expectation: bool = False,
    place: bool = False,
) -> None:
    if logits.stride(3) != 1:
        logits = logits.contiguous()
    batch, bins, height, width = logits.shape
    _kernel[(triton.cdiv(height * width, _BLOCK), batch)](
        logits, cell, state.depth_range.contiguous(), chosen, sure, expected, *logits.stride()[:3],
        height, width, state.grid.cells(state.stage + 1), D=bins, FIRST=state.stage == 0,
        TOLERANCE=state.grid.tolerance, INVERSE=state.grid.inverse, NEARBY=nearby, EXPECTATION=expectation,
        PLACE=place, BLOCK=_BLOCK,
    )  # fmt: skip
