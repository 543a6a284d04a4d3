"""Generalized binary search over depth: the only file that knows how bins split.

The range [near, far] is cut into cells. After stage k there are `first_bins * 2**(k-1)` of them, equal in
depth (or in inverse depth), and every pixel sits in one. The next stage halves that cell and puts
(bins - 2) / 2 tolerance bins of the same width on each side, so that a step into the wrong neighbour can be
corrected. A cell is one integer per pixel; borders and hypotheses are computed from it where they are used. A
fractional cell is a continuous depth in the same unit: cell i reaches from i to i + 1. All functions are
pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.errors import InputError
from gbinet.ops import choose
from gbinet.ops.bins import Bins, to_depth, to_position
from gbinet.ops.extrema import local_extrema
from gbinet.ops.smooth import smoothed
from gbinet.ops.upsample import upsample_cells

PARENTS = 3  # cells that a pixel may choose from between two scales: see `parents`
MAX_CELLS = 2**28  # finer than float32 resolves depths, and well within int32


@dataclass(frozen=True)
class SearchGrid:
    """How the range is cut into cells."""

    bins: int = 4  # D: hypotheses per stage, even
    first_bins: int = 4  # hypotheses of the first stage; the paper has first_bins = bins
    inverse: bool = False  # cells equal in 1/depth instead of depth
    edge: int = 0  # > 0: neighbours that differ by more cells than this are not mixed by upsample

    def __post_init__(self) -> None:
        if self.bins < 2 or self.bins % 2:
            raise InputError(f"the number of bins must be even and at least 2, got {self.bins}")
        if self.first_bins < self.bins:
            raise InputError(f"the first stage needs at least {self.bins} bins, got {self.first_bins}")

    @property
    def tolerance(self) -> int:
        """Error-tolerance bins on each side of the halved cell."""
        return (self.bins - 2) // 2

    def cells(self, stage: int) -> int:
        """Number of cells of the whole range after `stage` stages (stage >= 1)."""
        cells = self.first_bins << min(stage - 1, 60)  # a file may ask for any number of stages
        if cells > MAX_CELLS:
            raise InputError(f"stage {stage} would cut the range into more than {MAX_CELLS} cells")
        return cells

    def to_depth(self, position: Tensor, depth_range: Tensor) -> Tensor:
        """Position in [0, 1] -> depth. position [B, ...], depth_range [B, 2]."""
        return to_depth(position, depth_range, self.inverse)

    def to_position(self, depth: Tensor, depth_range: Tensor) -> Tensor:
        """Depth -> position in [0, 1] (outside for depths outside the range)."""
        return to_position(depth, depth_range, self.inverse)


@dataclass(frozen=True)
class SearchState:
    """Where every pixel's search stands."""

    grid: SearchGrid
    depth_range: Tensor  # [B, 2] float32: near, far
    stage: int  # stages done; 0 at the start
    cell: Tensor  # [B, H, W] int32: the cell chosen at the last stage, 0 <= cell < grid.cells(stage)
    fractional_cell: Tensor | None = None  # [B, H, W] float32, if `cell` was rounded down from it

    @property
    def num_bins(self) -> int:
        """Hypotheses of the coming stage."""
        return self.grid.first_bins if self.stage == 0 else self.grid.bins

    @property
    def bins(self) -> Bins:
        """The coming bins."""
        factor, shift = (1, 0) if self.stage == 0 else (2, -self.grid.tolerance)
        cells = self.grid.cells(self.stage + 1)
        return Bins(self.cell, factor, shift, self.num_bins, cells, self.depth_range, self.grid.inverse)


def start(grid: SearchGrid, depth_range: Tensor, height: int, width: int) -> SearchState:
    """The state before the first stage: nothing known. depth_range [B, 2]."""
    batch = depth_range.shape[0]
    cell = torch.zeros(batch, height, width, dtype=torch.int32, device=depth_range.device)
    return SearchState(grid, depth_range.float(), 0, cell)


def edges(state: SearchState) -> Tensor:
    """Borders of the coming bins, [B, D + 1, H, W]. A bin beyond an end of the range has zero width there."""
    return state.grid.to_depth(state.bins.borders(), state.depth_range)


def hypotheses(state: SearchState) -> Tensor:
    """Depths to test at the coming stage: the bins' centres, [B, D, H, W]."""
    return state.bins.depths()


def window(state: SearchState) -> tuple[Tensor, Tensor]:
    """Smallest and largest depth that the coming stage can answer, [B, H, W] each."""
    borders = edges(state)
    return borders[:, 0], borders[:, -1]


def label(state: SearchState, depth: Tensor) -> tuple[Tensor, Tensor]:
    """The bin that contains each true depth [B, H, W]: index [B, H, W] int64 and where there is one (bool).

    Bin j contains d if edge_j <= d < edge_{j+1}. Outside all bins the index is 0 and the mask False.
    """
    borders = edges(state)  # [B, D + 1, H, W]
    inside = (depth >= borders[:, 0]) & (depth < borders[:, -1])
    index = (depth[:, None] >= borders[:, 1:-1]).sum(1)  # [B, H, W]
    return torch.where(inside, index, torch.zeros_like(index)), inside


def descend(state: SearchState, choice: Tensor) -> SearchState:
    """Go down into the chosen bin of every pixel. choice [B, H, W]: index of a bin."""
    cell = (state.bins.first + choice).clamp(0, state.bins.cells - 1)
    return _next_state(state, cell.to(torch.int32))


def descend_to(state: SearchState, fractional_cell: Tensor) -> SearchState:
    """Go down into the cells that contain these fractional cells [B, H, W] of the coming stage."""
    cell = fractional_cell.clamp(0, state.bins.cells - 1).to(torch.int32)  # rounds down: nothing is negative
    return _next_state(state, cell, fractional_cell)


def _next_state(state: SearchState, cell: Tensor, fractional_cell: Tensor | None = None) -> SearchState:
    return replace(state, stage=state.stage + 1, cell=cell, fractional_cell=fractional_cell)


def expected_cell(state: SearchState, probabilities: Tensor) -> Tensor:
    """Expectation over the most probable bin and its direct neighbours, a fractional cell [B, H, W].

    `state` is the one that the probabilities [B, D, H, W] were computed for. May lie outside the range, where
    bins do.
    """
    return choose.expected_cell(state.bins, probabilities)


def follow(
    state: SearchState, logits: Tensor, smoothing: tuple[int, int] | None, nearby: bool = False
) -> tuple[SearchState, Tensor]:
    """The state after a stage with these logits [B, D, H, W], and the stage's confidence [B, 1, H, W].

    Without smoothing, the state is in the most probable bins; else in the expected cells, smoothed over
    neighbours on the same surface. Neither result has a gradient.

    Args:
        smoothing: Radius in pixels and reach in cells; None = no smoothing.
        nearby: The confidence includes the bins next to the most probable one (see the function `nearby`).
    """
    logits = logits.detach()
    if smoothing is None:
        cell, confidence = choose.choose(state.bins, logits, nearby)
        return _next_state(state, cell), confidence
    expected, confidence = choose.choose(state.bins, logits, nearby, fractional=True)
    return descend_to(state, smoothed(expected, *smoothing)), confidence


def upsample(state: SearchState, height: int, width: int) -> SearchState:
    """The same state on a finer pixel grid: cells' centres are interpolated bilinearly and rounded to cells.

    In cells, not in depth: for linear depth that is the same, and exact. With `grid.edge`, a pixel's own
    coarse cell is averaged only with those on its side of a depth edge: the mean of two sides is a depth that
    neither has, too far from both for the tolerance bins.
    """
    if state.cell.shape[-2:] == (height, width):
        return state
    if state.stage == 0:
        return start(state.grid, state.depth_range, height, width)
    if state.grid.edge:
        cell = state.cell
        while 2 * cell.shape[-2] <= height and 2 * cell.shape[-1] <= width:
            cell = upsample_cells(cell, state.grid.edge)
        if cell.shape[-2:] == (height, width):
            return with_cells(state, cell)  # in the range: means of cells that are
    centre = state.cell[:, None].float() + 0.5  # [B, 1, h, w]
    finer = F.interpolate(centre, size=(height, width), mode="bilinear", align_corners=False)[:, 0]
    cell = finer.floor().clamp(0, state.grid.cells(state.stage) - 1)
    return with_cells(state, cell.to(torch.int32))


def parents(state: SearchState, height: int, width: int) -> Tensor:
    """Cells that a pixel of a finer grid, or of the same one, may descend from, [B, PARENTS, H, W] int32.

    Its own (as `upsample` gives it), then the nearest and the farthest of the 3x3 coarse pixels around it.
    """
    own = upsample(state, height, width).cell  # [B, H, W]
    return torch.cat([own[:, None], local_extrema(state.cell, 1, (height, width))], dim=1)


def with_cells(state: SearchState, cell: Tensor) -> SearchState:
    """The state with these cells [B, H, W] of the same stage instead, on the same or a finer pixel grid."""
    return replace(state, cell=cell, fractional_cell=None)


def bins_at(state: SearchState, cells: Tensor) -> Bins:
    """Any cells [B, N, H, W] of the state's stage as bins to test."""
    total, grid = state.grid.cells(state.stage), state.grid
    return Bins(cells, 1, 0, cells.shape[1], total, state.depth_range, grid.inverse, apart=True)


def cell_depth(state: SearchState, cells: Tensor) -> Tensor:
    """Depth of the centres of cells [B, ...] of the state's stage."""
    return bins_at(state, cells).depths()


def depth(state: SearchState) -> Tensor:
    """Depth of the chosen cells, [B, H, W]: their centres."""
    if state.stage == 0:
        raise InputError("no stage has been searched yet, so there is no depth")
    return cell_depth(state, state.cell)


def expected_depth(state: SearchState, probabilities: Tensor) -> Tensor:
    """Continuous depth, [B, H, W]: expectation over the most probable bin and its direct neighbours.

    `state` is the one that the probabilities [B, D, H, W] were computed for. Positions are clamped to the
    range after the expectation, so that bins beyond its ends do not count twice.
    """
    expected = expected_cell(state, probabilities)
    return continuous_depth(replace(state, stage=state.stage + 1, fractional_cell=expected))


def continuous_depth(state: SearchState) -> Tensor:
    """Depth of a state's fractional cells, [B, H, W]."""
    if state.fractional_cell is None:
        raise InputError("a search without smoothing keeps no continuous depth")
    position = state.fractional_cell / state.grid.cells(state.stage)
    return state.grid.to_depth(position.clamp(0, 1), state.depth_range)


def nearby(probabilities: Tensor) -> Tensor:
    """Probability of the most probable bin together with its direct neighbours, [B, 1, H, W] float32.

    The probability of a depth at the border of two bins is split between them, and either of them is right:
    the tolerance bins of the next stage make up for the difference.
    """
    return choose.confidence_of(probabilities, nearby=True)
