"""How depth is searched: which hypotheses a stage tests, and what follows from what the network says of them.

Everything else is the same for all: encoder, cost volume, regulariser, training, validation. A new strategy
is a class with the methods of `Strategy`, a line in STRATEGIES and a preset in config.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.errors import InputError
from gbinet.model import search
from gbinet.model.search import SearchGrid, SearchState
from gbinet.model.shares import shares
from gbinet.model.smoothing import smoothed

if TYPE_CHECKING:
    from gbinet.model.config import GBiNetConfig


class State(Protocol):
    """Where every pixel's search stands; only its strategy knows what else is in it."""

    @property
    def stage(self) -> int: ...  # stages done

    @property
    def depth_range(self) -> Tensor: ...  # [B, 2]: near, far


class Strategy(Protocol):
    """States go in and out; all functions are pure. A state is always one of the strategy's own."""

    regresses: bool  # trained by the error of expected_depth (smooth L1) instead of cross-entropy over bins
    enlarging: Literal["nearest", "bilinear"]  # how a coarse depth map is shown at full size
    most_stages: int | None  # that the strategy has; None = any number

    def start(self, depth_range: Tensor, height: int, width: int, first_bins: int | None = None) -> Any:
        """Before the first stage. first_bins: hypotheses of stage 1, None = as configured."""

    def upsample(self, state: Any, height: int, width: int) -> Any:
        """The same state on a finer pixel grid."""

    def hypotheses(self, state: Any) -> Tensor:
        """Depths to test at the coming stage, [B, D, h, w], nearest first."""

    def descend(self, state: Any, logits: Tensor) -> Any:
        """The state after a stage that said `logits` [B, D, h, w]. No gradient flows through it."""

    def depth(self, state: Any) -> Tensor:
        """What a state that has seen a stage takes for the depth, [B, h, w]."""

    def smooth_depth(self, state: Any) -> Tensor:
        """The same as the mean of neighbours on one surface, [B, h, w]; only where stages are smoothed."""

    def expected_depth(self, state: Any, probabilities: Tensor) -> Tensor:
        """Continuous depth, [B, h, w]. `state` is the one that the probabilities [B, D, h, w] are about."""

    def confidence(self, state: Any, probabilities: Tensor) -> Tensor:
        """How sure a stage is, [B, 1, h, w] in [0, 1]."""

    def window(self, state: Any) -> tuple[Tensor, Tensor]:
        """Smallest and largest depth that the coming stage can answer, [B, h, w] each."""


class BinarySearch:
    """The paper's: a few bins per stage, the best one is halved. See search.py, where all of it lives."""

    regresses = False
    enlarging: Literal["nearest", "bilinear"] = "nearest"
    most_stages: int | None = None

    def __init__(self, config: GBiNetConfig) -> None:
        if config.hypotheses or config.windows:
            raise InputError("hypotheses and windows are of the strategy 'dense'; the binary search has bins")
        self.grid = config.grid
        self.nearby = config.joint_confidence
        self.smoothing_of = config.smoothing_of

    def start(
        self, depth_range: Tensor, height: int, width: int, first_bins: int | None = None
    ) -> SearchState:
        grid = self.grid if first_bins is None else replace(self.grid, first_bins=first_bins)
        return search.start(grid, depth_range, height, width)

    def upsample(self, state: SearchState, height: int, width: int) -> SearchState:
        return search.upsample(state, height, width)

    def hypotheses(self, state: SearchState) -> Tensor:
        return search.hypotheses(state)

    def descend(self, state: SearchState, logits: Tensor) -> SearchState:
        logits, smoothing = logits.detach(), self.smoothing_of(state.stage + 1)
        if smoothing is None:
            return search.descend(state, logits.max(1).indices)
        place = search.expected_place(state, shares(logits.float()))
        return search.settle(state, smoothed(place, *smoothing))

    def depth(self, state: SearchState) -> Tensor:
        return search.depth(state)

    def smooth_depth(self, state: SearchState) -> Tensor:
        return search.settled_depth(state)

    def expected_depth(self, state: SearchState, probabilities: Tensor) -> Tensor:
        return search.expected_depth(state, probabilities)

    def confidence(self, state: SearchState, probabilities: Tensor) -> Tensor:
        return search.nearby(probabilities) if self.nearby else probabilities.amax(1, keepdim=True)

    def window(self, state: SearchState) -> tuple[Tensor, Tensor]:
        borders = search.edges(state)  # [B, D + 1, h, w]
        return borders[:, 0], borders[:, -1]


@dataclass(frozen=True)
class DenseState:
    """Where every pixel's dense search stands."""

    depth_range: Tensor  # [B, 2] float32
    stage: int
    position: Tensor  # [B, h, w] float32 in [0, 1] of the range: the answer of the last stage


class DenseSearch:
    """Regression: many hypotheses evenly over a window, the answer their mean by probability (soft argmin).

    One stage whose window is the whole range is MVSNet's search; with ever smaller windows around the answer
    of the stage before it is CasMVSNet's. Windows are moved, where needed, to lie inside the range.
    """

    regresses = True
    enlarging: Literal["nearest", "bilinear"] = "bilinear"

    def __init__(self, config: GBiNetConfig) -> None:
        self.grid: SearchGrid = config.grid  # of which only the mapping of positions to depths is used
        self.counts, self.windows = config.hypotheses, config.windows
        self.most_stages: int | None = len(self.counts)
        if not self.counts or len(self.counts) != len(self.windows):
            raise InputError(
                "dense search needs hypotheses and a window for each stage, "
                f"got {self.counts} and {self.windows}"
            )
        if config.first_spacing or config.edge_cells or config.smooth_radii or config.confidence != "largest":
            raise InputError(
                "first_spacing, edge_cells, smooth_radii and confidence are of the binary search, "
                "not of the dense one"
            )
        if min(self.counts) < 2 or not all(0 < w <= 1 for w in self.windows) or self.windows[0] != 1:
            raise InputError(
                "dense search needs 2 hypotheses or more per stage and windows of at most 1 (the whole "
                f"range), the first of them 1, got {self.counts} and {self.windows}"
            )

    def start(
        self, depth_range: Tensor, height: int, width: int, first_bins: int | None = None
    ) -> DenseState:
        if first_bins is not None:
            raise InputError("the dense search has as many hypotheses as its configuration says")
        middle = torch.full((len(depth_range), height, width), 0.5, device=depth_range.device)
        return DenseState(depth_range.float(), 0, middle)

    def upsample(self, state: DenseState, height: int, width: int) -> DenseState:
        if state.position.shape[-2:] == (height, width):
            return state
        size = (height, width)
        finer = F.interpolate(state.position[:, None], size=size, mode="bilinear", align_corners=False)
        return replace(state, position=finer[:, 0])

    def hypotheses(self, state: DenseState) -> Tensor:
        low, step = self._first_and_step(state)
        index = torch.arange(self.counts[state.stage], device=low.device, dtype=torch.float32)
        positions = low[:, None] + step * index[:, None, None]  # [B, D, h, w]
        return self.grid.to_depth(positions, state.depth_range)

    def descend(self, state: DenseState, logits: Tensor) -> DenseState:
        probabilities = shares(logits.detach().float())
        return replace(state, stage=state.stage + 1, position=self._expected_position(state, probabilities))

    def depth(self, state: DenseState) -> Tensor:
        if state.stage == 0:
            raise InputError("no stage has been searched yet, so there is no depth")
        return self.grid.to_depth(state.position, state.depth_range)

    def smooth_depth(self, state: DenseState) -> Tensor:
        raise InputError("the dense search does not smooth: read out its expectation")

    def expected_depth(self, state: DenseState, probabilities: Tensor) -> Tensor:
        return self.grid.to_depth(self._expected_position(state, probabilities), state.depth_range)

    def confidence(self, state: DenseState, probabilities: Tensor) -> Tensor:
        """As published: the probability of the four hypotheses around the answer, two on each side."""
        count = probabilities.shape[1]
        around = torch.arange(-1, 3, device=probabilities.device)[:, None, None]  # [4, 1, 1]
        index = _mean_index(probabilities).floor().long()[:, None] + around  # [B, 4, h, w]
        inside = (index >= 0) & (index < count)
        nearby = probabilities.gather(1, index.clamp(0, count - 1)) * inside
        return nearby.sum(1, keepdim=True).clamp(max=1.0)

    def window(self, state: DenseState) -> tuple[Tensor, Tensor]:
        low, step = self._first_and_step(state)
        ends = torch.stack([low, low + step * (self.counts[state.stage] - 1)], dim=1)  # [B, 2, h, w]
        near, far = self.grid.to_depth(ends, state.depth_range).unbind(1)
        return near, far

    def _expected_position(self, state: DenseState, probabilities: Tensor) -> Tensor:
        low, step = self._first_and_step(state)
        return low + step * _mean_index(probabilities)  # [B, h, w]

    def _first_and_step(self, state: DenseState) -> tuple[Tensor, float]:
        """Position of the first hypothesis [B, h, w], and from one to the next; both ends have one."""
        width = self.windows[state.stage]
        low = (state.position - width / 2).clamp(0, 1 - width)
        return low, width / (self.counts[state.stage] - 1)


def _mean_index(probabilities: Tensor) -> Tensor:
    """Expected number of the hypothesis, [B, h, w]. probabilities [B, D, h, w]."""
    index = torch.arange(probabilities.shape[1], device=probabilities.device, dtype=probabilities.dtype)
    # No matrix product: autocast would run it in half precision, which cannot tell neighbours apart.
    return (probabilities * index[:, None, None]).sum(1)


STRATEGIES: dict[str, type[BinarySearch] | type[DenseSearch]] = {"binary": BinarySearch, "dense": DenseSearch}


def strategy_of(config: GBiNetConfig) -> Strategy:
    """The strategy that a configuration names; raises on one that it cannot have."""
    found: Strategy = STRATEGIES[config.strategy](config)
    if found.most_stages is not None and config.stages > found.most_stages:
        raise InputError(f"this search has {found.most_stages} stages, got stages = {config.stages}")
    return found
