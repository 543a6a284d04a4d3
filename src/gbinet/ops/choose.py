"""What a stage decides from its logits: a cell or a fractional cell for every pixel, and its confidence."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet import ops
from gbinet.ops.bins import Bins
from gbinet.ops.softmax import reproducible_softmax


def choose(
    bins: Bins,
    logits: Tensor,  # [B, D, H, W] of any floating type
    nearby: bool = False,  # add the probability of the direct neighbours to the confidence
    fractional: bool = False,  # the expected cell instead of the most probable one: see expected_cell
) -> tuple[Tensor, Tensor]:
    """Cell of the most probable bin [B, H, W], int32 (fractional: float32), and its probability [B, 1, H, W].

    Both have a gradient where the logits have one, except for int32 cells.
    """
    if ops.usable(logits) and not (logits.requires_grad and torch.is_grad_enabled()):
        from gbinet.ops import choose_triton

        return choose_triton.choose(bins, logits, nearby, fractional)
    return choose_plain(bins, logits, nearby, fractional)


def choose_plain(
    bins: Bins, logits: Tensor, nearby: bool = False, fractional: bool = False
) -> tuple[Tensor, Tensor]:
    probabilities = reproducible_softmax(logits.float())
    confidence = confidence_of(probabilities, nearby)
    if fractional:
        return expected_cell(bins, probabilities), confidence
    cell = (bins.first + logits.max(1).indices).clamp(0, bins.cells - 1)
    return cell.to(torch.int32), confidence


def expected_cell(bins: Bins, probabilities: Tensor) -> Tensor:
    """Expectation over the most probable bin and its direct neighbours, a fractional cell [B, H, W].

    Cell i reaches from i to i + 1. May lie outside the range, where bins do. probabilities [B, D, H, W].
    """
    weight = _near_most_probable(probabilities)
    index = torch.arange(bins.count, device=weight.device)[:, None, None]  # [D, 1, 1]
    mean = (weight * index).sum(1) / weight.sum(1)  # [B, H, W]: fractional bin
    return bins.first + mean + 0.5


def confidence_of(probabilities: Tensor, nearby: bool) -> Tensor:
    """Probability of the most probable bin, with its direct neighbours or alone, [B, 1, H, W]."""
    if not nearby:
        return probabilities.amax(1, keepdim=True)
    return _near_most_probable(probabilities).sum(1, keepdim=True).clamp(max=1.0)


def _near_most_probable(probabilities: Tensor) -> Tensor:
    """Probabilities [B, D, H, W] of the most probable bin and its direct neighbours, float32; 0 elsewhere."""
    best = probabilities.max(1, keepdim=True).indices  # [B, 1, H, W]
    index = torch.arange(probabilities.shape[1], device=best.device)[:, None, None]  # [D, 1, 1]
    return torch.where((index - best).abs() <= 1, probabilities.float(), 0.0)
