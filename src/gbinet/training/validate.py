"""How good a network is on samples with known depth: every stage's errors, valid shares, and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.data.batch import Batch
from gbinet.errors import InputError
from gbinet.evaluation.depth import (
    THRESHOLDS,
    ConfidenceErrors,
    DepthErrors,
    away_from_edges,
    confidence_errors,
    depth_errors,
)
from gbinet.model import search
from gbinet.model.gbinet import GBiNet, SearchResult, Stage


@dataclass(frozen=True)
class Validation:
    """Errors over all samples together, in the samples' unit."""

    stages: dict[int, DepthErrors]  # stage -> errors of the centres of its bins, shown at full size
    valid_share: dict[int, float]  # stage -> share of pixels whose true depth lies in a bin, now and before
    centre: DepthErrors  # of the last stage's centres, away from depth edges
    expectation: DepthErrors  # of the last stage's continuous depth, away from depth edges
    all_pixels: DepthErrors  # of the last stage's continuous depth, edges too
    confidence: ConfidenceErrors  # of the continuous depth, away from depth edges

    @property
    def score(self) -> float:
        """To choose weights by: the mean over all thresholds of the share within; larger is better."""
        within = self.expectation.within
        return sum(within.values()) / max(len(within), 1)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "score": self.score,
            "centre": self.centre.to_dict(),
            "expectation": self.expectation.to_dict(),
            "all_pixels": self.all_pixels.to_dict(),
            "confidence": vars(self.confidence),
            "stages": {k: v.to_dict() for k, v in self.stages.items()},
            "valid_share": self.valid_share,
        }


@dataclass(frozen=True)
class Prediction:
    """What the network said about one sample, for measuring and for pictures; on the network's device."""

    image: Tensor  # [3, H, W] of the reference
    truth: Tensor  # [H, W], 0 = unknown
    depth_range: Tensor  # [2]
    depth: dict[int, Tensor]  # stage -> [H, W]
    valid: dict[int, Tensor]  # stage -> [H, W] bool
    expectation: Tensor  # [H, W]
    confidence: Tensor  # [H, W]


@torch.no_grad()
def predict(model: GBiNet, batch: Batch, stages: int | None = None, precision: str = "float32") -> Prediction:
    """Run the search on one sample and look at every stage. The model's device; eval mode."""
    if len(batch.images) != 1:
        raise InputError(f"validation takes one sample at a time, got {len(batch.images)}")
    device = next(model.parameters()).device
    batch = batch.to(device)
    was_training = model.training
    model.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        result: SearchResult = model(
            batch.images,
            batch.cameras,
            batch.depth_range,
            stages=stages,
            keep_stages=True,
            readout="expectation",
        )
    model.train(was_training)
    height, width = batch.depth.shape[-2:]
    truth = torch.where(batch.mask, batch.depth, 0.0)
    depth, valid = {}, {}
    mask = truth > 0  # [1, H, W]
    for number, stage in enumerate(result.stages, start=1):
        mask = mask & _inside(stage, truth)
        depth[number] = _full_size(search.depth(stage.next_state), height, width)[0]
        valid[number] = mask[0]
    image, limits = batch.images[0, 0].clone(), batch.depth_range[0]
    return Prediction(image, truth[0], limits, depth, valid, result.depth[0], result.confidence[0])


def measure(predictions: Sequence[Prediction], thresholds: Sequence[float] = THRESHOLDS) -> Validation:
    """Errors of all samples together."""
    if not predictions:
        raise InputError("there is no sample to validate on")
    truth = torch.cat([p.truth.reshape(-1) for p in predictions])
    smooth = torch.cat([away_from_edges(p.truth).reshape(-1) for p in predictions])
    expectation = torch.cat([p.expectation.reshape(-1) for p in predictions])
    confidence = torch.cat([p.confidence.reshape(-1) for p in predictions])
    depth = {k: torch.cat([p.depth[k].reshape(-1) for p in predictions]) for k in predictions[0].depth}
    known = max(int((truth > 0).sum()), 1)
    valid = {k: sum(int(p.valid[k].sum()) for p in predictions) / known for k in predictions[0].valid}
    return Validation(
        stages={k: depth_errors(d, truth, smooth, thresholds) for k, d in depth.items()},
        valid_share=valid,
        centre=depth_errors(depth[max(depth)], truth, smooth, thresholds),
        expectation=depth_errors(expectation, truth, smooth, thresholds),
        all_pixels=depth_errors(expectation, truth, None, thresholds),
        confidence=confidence_errors(expectation, confidence, truth, smooth, thresholds=thresholds),
    )


def validate(
    model: GBiNet,
    samples: Iterable[Batch],
    stages: int | None = None,
    precision: str = "float32",
    thresholds: Sequence[float] = THRESHOLDS,
) -> Validation:
    """Errors of a network over samples (batches of one)."""
    return measure([predict(model, sample, stages, precision) for sample in samples], thresholds)


def _inside(stage: Stage, truth: Tensor) -> Tensor:
    """Full-size pixels [1, H, W] whose true depth lies in a bin of the cell that covers them."""
    height, width = truth.shape[-2:]
    borders = search.edges(stage.state)  # [1, D + 1, h, w]
    low = _full_size(borders[:, 0], height, width)
    high = _full_size(borders[:, -1], height, width)
    return (truth >= low) & (truth < high)


def _full_size(values: Tensor, height: int, width: int) -> Tensor:
    """[B, h, w] -> [B, H, W], nearest. The maps may be padded beyond a size that is no multiple of 8."""
    factor = -(-height // values.shape[-2]) if values.shape[-2] < height else 1
    if factor == 1:
        return values[:, :height, :width]
    return F.interpolate(values[:, None], scale_factor=factor, mode="nearest")[:, 0, :height, :width]
