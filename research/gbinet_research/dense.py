"""Dense searches: many hypotheses evenly over a window, the answer their mean by probability (soft argmin).

One stage whose window is the whole range is MVSNet's search; with ever smaller windows around the answer of
the stage before it is CasMVSNet's. Everything but the search is GBi-Net's: encoder, cost volume, regulariser,
training, validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.errors import InputError
from gbinet.model.choice import Choice
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet, Stage
from gbinet.model.search import SearchState
from gbinet.ops.cost_volume import Maps, reference_size
from gbinet.ops.smooth import smoothed
from gbinet.ops.softmax import reproducible_softmax


@dataclass(frozen=True)
class DenseConfig(GBiNetConfig):
    """A network that searches densely. The fields of the binary search keep their defaults."""

    hypotheses: tuple[int, ...] = ()  # of each stage
    windows: tuple[float, ...] = ()  # width of each stage's window, as a share of the range
    # Of each stage, or none: its answers are averaged over so many pixels around, as far as they are less
    # than this share of the range away (what smoothing does for the binary search, whose reach is in cells)
    settling: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hypotheses or len(self.hypotheses) != len(self.windows):
            raise InputError(
                "dense search needs hypotheses and a window for each stage, "
                f"got {self.hypotheses} and {self.windows}"
            )
        if min(self.hypotheses) < 2 or not all(0 < w <= 1 for w in self.windows) or self.windows[0] != 1:
            raise InputError(
                "dense search needs 2 hypotheses or more per stage and windows of at most 1 (the whole "
                f"range), the first of them 1, got {self.hypotheses} and {self.windows}"
            )
        if self.stages > len(self.hypotheses):
            raise InputError(f"this search has {len(self.hypotheses)} stages, got stages = {self.stages}")
        if len(self.settling) not in (0, len(self.hypotheses)):
            raise InputError(f"settling needs two numbers per stage or none, got {self.settling}")
        binary = ("first_spacing", "edge_cells", "smoothing", "choice_widths")
        if any(getattr(self, name) for name in binary) or self.confidence != "largest":
            raise InputError(
                f"{', '.join(binary)} and confidence are of the binary search, not of the dense one"
            )

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "strategy": "dense"}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        if not isinstance(values, dict) or values.get("strategy") != "dense":
            raise InputError("this is not the configuration of a dense search")
        return super().from_dict({k: v for k, v in values.items() if k != "strategy"})


# At their published sizes. MVSNet: 192 hypotheses over the range, at 1/4 of the image's size. CasMVSNet: 48,
# 32, 8 hypotheses at 1/4, 1/2 and full size; 4, 2 and 1 of MVSNet's steps apart.
_CASCADE = DenseConfig(
    hypotheses=(48, 32, 8), windows=(1.0, 64 / 192, 8 / 192), stages=3, scale_of_stage=(1, 2, 3)
)
PRESETS = {
    "dense-linear": DenseConfig(hypotheses=(192,), windows=(1.0,), stages=1, scale_of_stage=(1,)),
    "coarse-to-fine": _CASCADE,
    # With the help that the binary search has, where it applies: at the same scale the same radius, and the
    # same reach as a share of the range (6 of 192 cells, 12 of 768, 32 of 1536). Its read-out is continuous.
    "coarse-to-fine-helped": replace(
        _CASCADE, inverse_depth=True, settling=((1, 6 / 192), (2, 12 / 768), (5, 32 / 1536))
    ),
}


class DenseSearch:
    """The search by itself, as pure functions of states.

    A state is the binary search's, of a range that is one cell: `fractional_cell` is the result of the last
    stage as a share of the range, and `cell` only tells the size. Windows are moved, where needed, to lie
    inside the range.
    """

    def __init__(self, config: DenseConfig) -> None:
        self.grid = config.grid  # of which only the mapping of positions to depths is used
        self.counts, self.windows, self.settling = config.hypotheses, config.windows, config.settling

    def start(self, depth_range: Tensor, height: int, width: int) -> SearchState:
        cell = torch.zeros(len(depth_range), height, width, dtype=torch.int32, device=depth_range.device)
        return SearchState(
            self.grid, depth_range.float(), 0, cell, torch.full_like(cell, 0.5, dtype=torch.float32)
        )

    def upsample(self, state: SearchState, height: int, width: int) -> SearchState:
        """The same state on a finer pixel grid."""
        if state.cell.shape[-2:] == (height, width):
            return state
        position = _position(state)[:, None]
        finer = F.interpolate(position, size=(height, width), mode="bilinear", align_corners=False)[:, 0]
        return replace(state, cell=torch.zeros_like(finer, dtype=torch.int32), fractional_cell=finer)

    def hypotheses(self, state: SearchState) -> Tensor:
        """Depths to test at the coming stage, [B, D, h, w], nearest first."""
        low, step = self._first_and_step(state)
        index = torch.arange(self.counts[state.stage], device=low.device, dtype=torch.float32)
        positions = low[:, None] + step * index[:, None, None]  # [B, D, h, w]
        return self.grid.to_depth(positions, state.depth_range)

    def follow(self, state: SearchState, logits: Tensor) -> SearchState:
        """The state after a stage that said `logits` [B, D, h, w]. No gradient flows through it."""
        position = self._expected_position(state, reproducible_softmax(logits.detach().float()))
        if self.settling:
            position = smoothed(position, *self.settling[state.stage])
        return replace(state, stage=state.stage + 1, fractional_cell=position)

    def depth(self, state: SearchState) -> Tensor:
        """The answer of the last stage, [B, h, w]."""
        return self.grid.to_depth(_position(state), state.depth_range)

    def expected_depth(self, state: SearchState, probabilities: Tensor) -> Tensor:
        """The answer of the coming stage, [B, h, w], with gradient."""
        return self.grid.to_depth(self._expected_position(state, probabilities), state.depth_range)

    def confidence(self, probabilities: Tensor) -> Tensor:
        """As published: the probability of the four hypotheses around the answer, two on each side."""
        count = probabilities.shape[1]
        around = torch.arange(-1, 3, device=probabilities.device)[:, None, None]  # [4, 1, 1]
        index = _mean_index(probabilities).floor().long()[:, None] + around  # [B, 4, h, w]
        inside = (index >= 0) & (index < count)
        nearby = probabilities.gather(1, index.clamp(0, count - 1)) * inside
        return nearby.sum(1, keepdim=True).clamp(max=1.0)

    def window(self, state: SearchState) -> tuple[Tensor, Tensor]:
        """Smallest and largest depth that the coming stage can answer, [B, h, w] each."""
        low, step = self._first_and_step(state)
        ends = torch.stack([low, low + step * (self.counts[state.stage] - 1)], dim=1)  # [B, 2, h, w]
        near, far = self.grid.to_depth(ends, state.depth_range).unbind(1)
        return near, far

    def _expected_position(self, state: SearchState, probabilities: Tensor) -> Tensor:
        low, step = self._first_and_step(state)
        return low + step * _mean_index(probabilities)  # [B, h, w]

    def _first_and_step(self, state: SearchState) -> tuple[Tensor, float]:
        """Position of the first hypothesis [B, h, w], and from one to the next; both ends have one."""
        if state.stage >= len(self.counts):
            raise InputError(f"stages must be at most {len(self.counts)} with this network's search")
        width = self.windows[state.stage]
        low = (_position(state) - width / 2).clamp(0, 1 - width)
        return low, width / (self.counts[state.stage] - 1)


def _position(state: SearchState) -> Tensor:
    if state.fractional_cell is None:  # cut off with everything that the binary search can do without
        raise InputError("a dense search cannot be cut into tiles: use smaller images or more memory")
    return state.fractional_cell


def _mean_index(probabilities: Tensor) -> Tensor:
    """Expected number of the hypothesis, [B, h, w]. probabilities [B, D, h, w]."""
    index = torch.arange(probabilities.shape[1], device=probabilities.device, dtype=probabilities.dtype)
    # Not a matrix product: autocast would run it in half precision, which cannot tell neighbours apart.
    return (probabilities * index[:, None, None]).sum(1)


class DenseNet(GBiNet):
    """GBi-Net's network around a dense search."""

    config_type = DenseConfig
    upsample_mode: ClassVar[Literal["nearest", "bilinear"]] = "bilinear"

    @property
    def dense(self) -> DenseSearch:
        assert isinstance(self.config, DenseConfig)
        return DenseSearch(self.config)

    def start(
        self, features: Sequence[Maps], depth_range: Tensor, first_bins: int | None = None
    ) -> SearchState:
        if first_bins is not None:
            raise InputError("a dense search has as many hypotheses as its configuration says")
        return self.dense.start(depth_range, *reference_size(features[self.config.scale_index(1)]))

    def upsample(
        self, maps: Maps, reference: Tensor, transforms: Tensor, state: SearchState, scale: int
    ) -> tuple[SearchState, Choice | None]:
        return self.dense.upsample(state, *reference_size(maps)), None

    def hypotheses(self, state: SearchState) -> Tensor:
        return self.dense.hypotheses(state)

    def window(self, state: SearchState) -> tuple[Tensor, Tensor]:
        return self.dense.window(state)

    def follow(self, state: SearchState, logits: Tensor) -> tuple[SearchState, Tensor]:
        probabilities = reproducible_softmax(logits.detach().float())
        return self.dense.follow(state, logits), self.dense.confidence(probabilities)

    def expected_depth(self, stage: Stage) -> Tensor:
        return self.dense.expected_depth(stage.state, stage.probabilities)

    def centre_depth(self, stage: Stage) -> Tensor:
        return self.dense.depth(stage.next_state)
