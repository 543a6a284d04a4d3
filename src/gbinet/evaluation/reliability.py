"""Calibration of confidence: is a share c of the pixels with confidence c right?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from gbinet.errors import InputError

BINS = 10  # of confidence, equally wide


@dataclass(frozen=True)
class ReliabilityBin:
    """The pixels whose confidence lies in [low, high]."""

    low: float
    high: float
    share: float  # of all pixels
    confidence: float  # mean
    right: float  # share of these pixels


@dataclass(frozen=True)
class Reliability:
    """The reliability diagram in numbers."""

    bins: tuple[ReliabilityBin, ...]  # those that have pixels
    error: float  # mean calibration error: |confidence - right|, weighted by share; 0 = calibrated

    def to_dict(self) -> dict[str, object]:
        return {"error": self.error, "bins": [asdict(b) for b in self.bins]}

    def table(self) -> str:
        lines = ["confidence   pixels %   mean   right"]
        lines += [
            f"{b.low:.1f} to {b.high:.1f}   {100 * b.share:8.1f}   {b.confidence:.3f}  {b.right:.3f}"
            for b in self.bins
        ]
        return "\n".join([*lines, f"mean calibration error {self.error:.3f}"])


def reliability(confidence: Tensor, right: Tensor, bins: int = BINS) -> Reliability:
    """Of pixels of any shape: confidence in [0, 1], right bool."""
    if confidence.shape != right.shape:
        raise InputError(f"confidence is {list(confidence.shape)} but what is right {list(right.shape)}")
    predicted, correct = confidence.flatten().double(), right.flatten().double()  # [N]
    index = (predicted * bins).long().clamp(0, bins - 1)
    counts, predicted_sums, correct_sums = (
        torch.zeros(bins, dtype=torch.float64, device=index.device).index_add_(0, index, values)
        for values in (torch.ones_like(predicted), predicted, correct)
    )
    total = predicted.numel()
    rows = [
        ReliabilityBin(i / bins, (i + 1) / bins, n / total, c / n, h / n)
        for i, (n, c, h) in enumerate(torch.stack([counts, predicted_sums, correct_sums], 1).tolist())
        if n
    ]
    return Reliability(tuple(rows), sum(b.share * abs(b.confidence - b.right) for b in rows))
