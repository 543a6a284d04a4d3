"""What a stage of the search says, what the whole search says, and how confidences are put together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.model.choice import Choice
from gbinet.model.search import SearchState
from gbinet.ops.cost_volume import Maps
from gbinet.ops.shares import shares


@dataclass(frozen=True)
class Stage:
    """What one stage saw and said."""

    state: SearchState  # the state that was looked at: its hypotheses are what the logits are about
    logits: Tensor  # [B, D, h, w]
    next_state: SearchState  # what follows
    confidence: Tensor | None = None  # [B, 1, h, w]: the stage's own, without that of its choice
    choice: Choice | None = None  # of parents or neighbours, where the stage began with one

    @property
    def probabilities(self) -> Tensor:
        """[B, D, h, w] float32."""
        return shares(self.logits.float())


@dataclass(frozen=True)
class SearchResult:
    depth: Tensor  # [B, H, W] float32
    confidence: Tensor  # [B, H, W] float32 in [0, 1]
    stages: tuple[Stage, ...] = ()  # only on request
    state: SearchState | None = None  # where the search ended, to go on from


def joined(values: Tensor, coarser: Tensor | None, joint: bool) -> Tensor:
    """values [B, 1, h, w] plus (joint: times) a map of that size or a coarser one, its pixels repeated."""
    if coarser is None:
        return values
    if coarser.shape[-2:] != values.shape[-2:]:
        coarser = F.interpolate(coarser, size=values.shape[-2:], mode="nearest")
    return values * coarser if joint else values + coarser


def padded(values: Tensor, size: tuple[int, int]) -> Tensor:
    """values [B, 1, h, w] with their border repeated on the right and at the bottom."""
    more = (0, size[1] - values.shape[-1], 0, size[0] - values.shape[-2])
    return F.pad(values, more, mode="replicate")


def forget(features: list[Maps], needed: set[int]) -> None:
    """Empty the maps of all scales but the needed ones."""
    for scale in set(range(len(features))) - needed:
        features[scale] = torch.empty(0)
