"""Results of a stage and of the whole search, and how the confidences of stages are combined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.model.choice import Choice
from gbinet.model.search import SearchState
from gbinet.ops.cost_volume import Maps
from gbinet.ops.softmax import reproducible_softmax


@dataclass(frozen=True)
class Stage:
    """Input and result of one stage."""

    state: SearchState  # before the stage; the logits are of its hypotheses
    logits: Tensor  # [B, D, h, w]
    next_state: SearchState  # after the stage
    confidence: Tensor | None = None  # [B, 1, h, w], without that of the choice; no gradient
    choice: Choice | None = None  # of parents, if the stage began with one

    @property
    def probabilities(self) -> Tensor:
        """[B, D, h, w] float32."""
        return reproducible_softmax(self.logits.float())


@dataclass(frozen=True)
class SearchResult:
    depth: Tensor  # [B, H, W] float32
    confidence: Tensor  # [B, H, W] float32 in [0, 1]
    stages: tuple[Stage, ...] = ()  # with keep_stages only
    state: SearchState | None = None  # after the last stage; a later search can resume from it


def combined(values: Tensor, coarser: Tensor | None, joint: bool) -> Tensor:
    """Sum (joint: product) of values [B, 1, h, w] and a map of their size or a coarser one, upsampled."""
    if coarser is None:
        return values
    coarser = upsampled(coarser, values.shape[-2:])
    return values * coarser if joint else values + coarser


def upsampled(values: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """values [B, 1, h, w] at a larger size, by nearest neighbours; at their own, as they are."""
    if values.shape[-2:] == tuple(size):
        return values
    return F.interpolate(values, size=tuple(size), mode="nearest")


def padded_to(values: Tensor, size: tuple[int, int]) -> Tensor:
    """values [B, 1, h, w] at a larger size: their border is repeated on the right and at the bottom."""
    padding = (0, size[1] - values.shape[-1], 0, size[0] - values.shape[-2])
    return F.pad(values, padding, mode="replicate")


def release_maps(features: list[Maps], needed: set[int]) -> None:
    """Replace the maps of all scales but the needed ones by empty tensors, to free their memory."""
    for scale in set(range(len(features))) - needed:
        features[scale] = torch.empty(0)
