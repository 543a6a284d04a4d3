"""How good a depth map is against the true one. Pure functions of tensors, in the scene's own unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.errors import InputError

THRESHOLDS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # millimetres, for scenes in millimetres


@dataclass(frozen=True)
class DepthErrors:
    """Errors over all pixels whose true depth is known; those without a depth count as wrong."""

    pixels: int  # pixels with known true depth
    answered: float  # share of these that have a depth
    within: dict[float, float]  # threshold -> share of all of these that are at most this far off
    mean: float  # absolute error of the pixels that have a depth; NaN where none has one
    median: float  # the same

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class ConfidenceErrors:
    """How well confidence sorts good pixels from bad ones."""

    share: float  # share of the pixels with known true depth whose confidence is above the threshold
    within: dict[float, float]  # threshold -> share of those confident pixels that are at most this far off
    ause: float  # area between the error curves sorted by confidence and by true error; 0 = perfect


def depth_errors(
    depth: Tensor,  # [..., H, W], 0 = no answer
    truth: Tensor,  # [..., H, W], 0 = unknown
    mask: Tensor | None = None,  # [..., H, W] bool: look only here
    thresholds: Sequence[float] = THRESHOLDS,
) -> DepthErrors:
    """Errors over all pixels of all maps together."""
    error, answered = _errors(depth, truth, mask)
    if error.numel() == 0:
        return DepthErrors(0, 0.0, dict.fromkeys(thresholds, 0.0), math.nan, math.nan)
    given = error[answered]
    within = {t: float((given <= t).sum()) / error.numel() for t in thresholds}
    mean = float(given.double().mean())  # NaN of none
    median = float(given.median()) if given.numel() else math.nan
    return DepthErrors(error.numel(), given.numel() / error.numel(), within, mean, median)


def confidence_errors(
    depth: Tensor,  # [..., H, W], 0 = no answer
    confidence: Tensor,  # [..., H, W] in [0, 1]
    truth: Tensor,  # [..., H, W], 0 = unknown
    mask: Tensor | None = None,  # [..., H, W] bool
    above: float = 0.8,
    thresholds: Sequence[float] = THRESHOLDS,
) -> ConfidenceErrors:
    """Errors of the confident pixels, and the sparsification error over all of them."""
    error, answered = _errors(depth, truth, mask)
    known = _known(truth, mask)
    if confidence.shape != truth.shape:
        raise InputError(f"confidence is {list(confidence.shape)} but the depth is {list(truth.shape)}")
    confident = confidence[known] > above
    chosen = error[confident & answered]
    count = max(int(confident.sum()), 1)
    within = {t: float((chosen <= t).sum()) / count for t in thresholds}
    # Errors are capped: a single pixel that is far off must not dominate.
    capped = error.clamp(max=max(thresholds))
    ause = _ause(capped[answered], confidence[known][answered])
    return ConfidenceErrors(int(confident.sum()) / max(error.numel(), 1), within, ause)


def away_from_edges(truth: Tensor, radius: int = 2, jump: float = 0.005) -> Tensor:
    """Pixels [..., H, W] bool of known depth with no depth edge within `radius` pixels.

    An edge is where the second difference of the depth exceeds `jump` times the depth (a slanted plane has
    none), or where a known depth meets an unknown one.
    """
    flat = truth.reshape(-1, 1, *truth.shape[-2:]).float()  # [N, 1, H, W]
    known = flat > 0
    padded = F.pad(flat, (1, 1, 1, 1), mode="replicate")
    centre = padded[..., 1:-1, 1:-1]
    across = (padded[..., 1:-1, 2:] + padded[..., 1:-1, :-2] - 2 * centre).abs()
    down = (padded[..., 2:, 1:-1] + padded[..., :-2, 1:-1] - 2 * centre).abs()
    # The border of the image is not an edge: a replicated neighbour only shows the slope.
    across[..., 0], across[..., -1] = 0, 0
    down[..., 0, :], down[..., -1, :] = 0, 0
    edge = (torch.maximum(across, down) > jump * flat).float()
    near_edge = F.max_pool2d(edge, 2 * radius + 1, 1, radius) > 0
    return (known & ~near_edge).reshape(truth.shape)


def _known(truth: Tensor, mask: Tensor | None) -> Tensor:
    known = torch.isfinite(truth) & (truth > 0)
    return known if mask is None else known & mask.bool()


def _errors(depth: Tensor, truth: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Absolute error [N] of the pixels with known truth, and which of them have an answer [N]."""
    if depth.shape != truth.shape or (mask is not None and mask.shape != truth.shape):
        raise InputError(f"depth is {list(depth.shape)} but the true depth is {list(truth.shape)}")
    known = _known(truth, mask)
    given, true = depth[known].float(), truth[known].float()
    answered = torch.isfinite(given) & (given > 0)
    return torch.where(answered, (given - true).abs(), torch.inf), answered


def _ause(error: Tensor, confidence: Tensor, steps: int = 50) -> float:
    """Area between the curves of mean error as the least confident pixels, and as the worst, are removed."""
    if error.numel() == 0:
        return 0.0
    by_confidence = error[confidence.argsort(descending=True)].double().cumsum(0)
    by_error = error.sort().values.double().cumsum(0)
    remaining = torch.linspace(1 / steps, 1, steps, dtype=torch.float64) * error.numel()
    index = remaining.ceil().long().clamp(1, error.numel()).to(error.device) - 1
    gap = (by_confidence[index] - by_error[index]) / (index + 1)
    return float(gap.mean())
