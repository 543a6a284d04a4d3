"""What a stage decides from its logits: cells or places in them, and how confident it is."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet import ops
from gbinet.ops.bins import Bins
from gbinet.ops.shares import shares


def choose(bins: Bins, logits: Tensor, nearby: bool = False, place: bool = False) -> tuple[Tensor, Tensor]:
    """The most probable bin's cell, [B, H, W] int32, and its probability, [B, 1, H, W] float32.

    logits [B, D, H, W] of any floating type. nearby: the probability of its direct neighbours is added.
    place: the continuous answer instead of the cell, float32 (see expected_place); with gradients, by the
    plain twin, where the logits have one.
    """
    if ops.usable(logits) and not (logits.requires_grad and torch.is_grad_enabled()):
        from gbinet.ops import choose_triton

        return choose_triton.choose(bins, logits, nearby, place)
    return choose_plain(bins, logits, nearby, place)


def choose_plain(
    bins: Bins, logits: Tensor, nearby: bool = False, place: bool = False
) -> tuple[Tensor, Tensor]:
    probabilities = shares(logits.float())
    confidence = confidence_of(probabilities, nearby)
    if place:
        return expected_place(bins, probabilities), confidence
    cell = (bins.first + logits.max(1).indices).clamp(0, bins.cells - 1)
    return cell.to(torch.int32), confidence


def expected_place(bins: Bins, probabilities: Tensor) -> Tensor:
    """Expectation over the most probable bin and its direct neighbours, in cells, [B, H, W]: cell i reaches
    from i to i + 1. May lie outside the range, where bins do. With gradient."""
    weight = _of_neighbours(probabilities)
    index = torch.arange(bins.count, device=weight.device)[:, None, None]  # [D, 1, 1]
    mean = (weight * index).sum(1) / weight.sum(1)  # [B, H, W]: fractional bin
    return bins.first + mean + 0.5


def confidence_of(probabilities: Tensor, nearby: bool) -> Tensor:
    """Probability of the most probable bin, with its direct neighbours or alone, [B, 1, H, W]."""
    if not nearby:
        return probabilities.amax(1, keepdim=True)
    return _of_neighbours(probabilities).sum(1, keepdim=True).clamp(max=1.0)


def _of_neighbours(probabilities: Tensor) -> Tensor:
    """The probabilities [B, D, H, W] of the most probable bin and its direct neighbours, float32, else 0."""
    choice = probabilities.max(1, keepdim=True).indices  # [B, 1, H, W]
    index = torch.arange(probabilities.shape[1], device=choice.device)[:, None, None]  # [D, 1, 1]
    return torch.where((index - choice).abs() <= 1, probabilities.float(), 0.0)
