"""Validation on samples with known depth: errors and valid shares of every stage, and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.errors import InputError
from gbinet.evaluation.depth import (
    THRESHOLDS,
    ConfidenceErrors,
    DepthErrors,
    away_from_edges,
    confidence_errors,
    depth_errors,
)
from gbinet.evaluation.reliability import Reliability, reliability
from gbinet.model import search
from gbinet.model.checks import evaluating
from gbinet.model.gbinet import GBiNet, SearchResult, Stage
from gbinet.model.geometry import is_right
from gbinet.model.result import combined
from gbinet.scenes.batch import Batch


@dataclass(frozen=True)
class Validation:
    """Errors over all samples, in their unit, of pixels whose true depth is known and in the range.

    Away from depth edges unless stated otherwise.
    """

    centres: dict[int, DepthErrors]  # stage -> of the centres of the chosen bins, at full size
    expectations: dict[int, DepthErrors]  # stage -> of the expected depth, at full size
    smooth: dict[int, DepthErrors]  # stage -> of the smoothed expected depth, if the network smooths it
    final: DepthErrors  # of the network's depth: its configured read-out of the last stage
    valid_share: dict[int, float]  # stage -> share of pixels whose true depth lies in a bin, now and before
    all_pixels: DepthErrors  # of the network's depth, depth edges included
    edge_band: DepthErrors  # of the network's depth, within 2 px of a depth edge
    confidence: ConfidenceErrors  # of the network's depth
    reliability: Reliability  # of its confidence, over all pixels that can be judged (see Prediction)

    @property
    def centre(self) -> DepthErrors:
        """Errors of the centres after the last stage."""
        return self.centres[max(self.centres)]

    @property
    def score(self) -> float:
        """The mean share within a threshold, over all thresholds. Weights with a larger score are better."""
        within = self.final.within
        return sum(within.values()) / max(len(within), 1)

    def summary(self) -> str:
        """One line for a log."""
        within = " / ".join(f"{100 * share:.1f}" for share in self.final.within.values())
        return f"score {self.score:.4f}, within {within} %, median {self.final.median:.3f}"

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "score": self.score,
            "centres": {k: v.to_dict() for k, v in self.centres.items()},
            "expectations": {k: v.to_dict() for k, v in self.expectations.items()},
            "smooth": {k: v.to_dict() for k, v in self.smooth.items()},
            "final": self.final.to_dict(),
            "valid_share": self.valid_share,
            "all_pixels": self.all_pixels.to_dict(),
            "edge_band": self.edge_band.to_dict(),
            "confidence": vars(self.confidence),
            "reliability": self.reliability.to_dict(),
        }


@dataclass(frozen=True)
class Prediction:
    """The network's results for one sample, for errors and pictures; on the network's device."""

    image: Tensor  # [3, H, W] of the reference
    truth: Tensor  # [H, W], 0 = unknown
    depth_range: Tensor  # [2]
    counted: Tensor  # [H, W] bool: the truth is known and inside the range
    centres: dict[int, Tensor]  # stage -> [H, W]
    expectations: dict[int, Tensor]  # stage -> [H, W]
    smooth: dict[int, Tensor]  # stage -> [H, W], if the network smooths it
    valid: dict[int, Tensor]  # stage -> [H, W] bool
    depth: Tensor  # [H, W]: the network's
    confidence: Tensor  # [H, W]
    right: Tensor  # [H, W] bool: the depth is right (see `is_right`)
    judged: Tensor  # [H, W] bool: `right` is known, also where there is no surface and all depths are wrong
    confidences: dict[int, Tensor] = field(default_factory=dict)  # stage -> [H, W], with keep_confidences


@torch.no_grad()
def predict(
    model: GBiNet,
    batch: Batch,
    stages: int | None = None,
    precision: str = "float32",
    keep_confidences: bool = False,
) -> Prediction:
    """Run the search on one sample and keep the results of every stage, in eval mode on the model's device.

    keep_confidences: also the confidence after the first k stages, for every k.
    """
    if len(batch.images) != 1:
        raise InputError(f"validation takes one sample at a time, got {len(batch.images)}")
    device = next(model.parameters()).device
    batch = batch.to(device)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    with evaluating(model), mixed:
        result: SearchResult = model(
            batch.images, batch.cameras, batch.depth_range, stages=stages, keep_stages=True
        )
    height, width = batch.depth.shape[-2:]
    truth = torch.where(batch.mask, batch.depth, 0.0)
    centres, expectations, smooth, valid = {}, {}, {}, {}
    near, far = batch.depth_range[0]
    counted = (truth >= near) & (truth <= far)  # [1, H, W]
    mask = counted
    for number, stage in enumerate(result.stages, start=1):
        mask = mask & _inside(model, stage, truth)
        valid[number] = mask[0]
        scale = model.config.scale_of(number)
        at_full_size = partial(_full_size, size=(height, width), scale=scale, mode=model.upsample_mode)
        centres[number] = at_full_size(model.centre_depth(stage))[0]
        expectations[number] = at_full_size(model.expected_depth(stage))[0]
        if model.config.smoothing_of(number):
            smooth[number] = at_full_size(search.continuous_depth(stage.next_state))[0]
    known = truth > 0
    return Prediction(
        image=batch.images[0, 0].clone(),
        truth=truth[0],
        depth_range=batch.depth_range[0],
        counted=counted[0],
        centres=centres,
        expectations=expectations,
        smooth=smooth,
        valid=valid,
        depth=result.depth[0],
        confidence=result.confidence[0],
        right=(is_right(result.depth, truth, batch.cameras) & known)[0],
        judged=(known if batch.complete is None else known | batch.complete[:, None, None])[0],
        confidences=_confidences(model, result.stages, (height, width)) if keep_confidences else {},
    )


def _confidences(model: GBiNet, stages: Sequence[Stage], size: tuple[int, int]) -> dict[int, Tensor]:
    """The confidence after every stage, [H, W] each."""
    joint = model.config.joint_confidence
    total: Tensor | None = None  # sum or product over the stages so far, [1, H, W]
    confidences = {}
    for number, stage in enumerate(stages, start=1):
        of_stage = _full_size(model.confidence(stage)[:, 0], size, model.config.scale_of(number))
        total = combined(of_stage, total, joint)
        confidences[number] = total[0] if joint else total[0] / number
    return confidences


def measure(predictions: Sequence[Prediction], thresholds: Sequence[float] = THRESHOLDS) -> Validation:
    """Errors of all samples together."""
    if not predictions:
        raise InputError("there is no sample to validate on")

    def together(maps: Sequence[Tensor]) -> Tensor:
        return torch.cat([m.reshape(-1) for m in maps])

    stages = list(predictions[0].centres)
    truth = together([p.truth for p in predictions])  # [N]
    counted = together([p.counted for p in predictions])
    no_edges = together([away_from_edges(p.truth) & p.counted for p in predictions])
    confidence = together([p.confidence for p in predictions])
    judged = together([p.judged for p in predictions])
    centres = {k: together([p.centres[k] for p in predictions]) for k in stages}
    expectations = {k: together([p.expectations[k] for p in predictions]) for k in stages}
    smooth = {k: together([p.smooth[k] for p in predictions]) for k in predictions[0].smooth}
    final = together([p.depth for p in predictions])
    pixels = max(int(counted.sum()), 1)

    def errors(maps: dict[int, Tensor]) -> dict[int, DepthErrors]:
        return {k: depth_errors(d, truth, no_edges, thresholds) for k, d in maps.items()}

    return Validation(
        centres=errors(centres),
        expectations=errors(expectations),
        smooth=errors(smooth),
        final=depth_errors(final, truth, no_edges, thresholds),
        valid_share={k: sum(int(p.valid[k].sum()) for p in predictions) / pixels for k in stages},
        all_pixels=depth_errors(final, truth, counted, thresholds),
        edge_band=depth_errors(final, truth, counted & ~no_edges, thresholds),
        confidence=confidence_errors(final, confidence, truth, no_edges, thresholds=thresholds),
        reliability=reliability(confidence[judged], together([p.right for p in predictions])[judged]),
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


PERCENTS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)  # of the depth, for scenes that have no common unit


def validate_by_name(
    model: GBiNet, samples: Iterable[Batch], stages: int | None = None, precision: str = "float32"
) -> dict[str, DepthErrors]:
    """Errors in percent of the depth, over all pixels of the samples NAME/NUMBER of each NAME."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for sample in samples:
        prediction = predict(model, sample, stages, precision)
        truth = prediction.truth[prediction.counted]
        depth = 100 * prediction.depth[prediction.counted] / truth
        name = sample.names[0].partition("/")[0]
        parts.setdefault(name, []).append((depth, torch.full_like(depth, 100.0)))
    maps = {name: [torch.cat(m) for m in zip(*pairs, strict=True)] for name, pairs in parts.items()}
    return {name: depth_errors(d, t, thresholds=PERCENTS) for name, (d, t) in maps.items()}


def table_by_name(results: Mapping[str, DepthErrors]) -> str:
    """A line per name: its share of all pixels, and the shares of its pixels within each percentage."""
    pixels = max(sum(errors.pixels for errors in results.values()), 1)
    heads = " ".join(f"{f'{p:g} %':>7}" for p in PERCENTS)
    lines = [f"{'difficulty':<12} pixels {heads}  median"]
    for name, errors in results.items():
        shares = " ".join(f"{100 * errors.within[p]:7.1f}" for p in PERCENTS)
        lines.append(f"{name:<12} {100 * errors.pixels / pixels:5.1f}% {shares}  {errors.median:5.2f}%")
    return "\n".join(lines)


def _inside(model: GBiNet, stage: Stage, truth: Tensor) -> Tensor:
    """Pixels [1, H, W] whose true depth lies in the bins of the coming stage."""
    size, scale = truth.shape[-2:], model.config.scale_of(stage.next_state.stage)
    low, high = (_full_size(border, size, scale) for border in model.window(stage.state))
    return (truth >= low) & (truth < high)


def _full_size(values: Tensor, size: Sequence[int], scale: int, mode: str = "nearest") -> Tensor:
    """[B, h, w] -> [B, H, W]. The maps may be padded beyond the size of the image."""
    height, width = size
    if scale > 1:
        values = F.interpolate(values[:, None], scale_factor=scale, mode=mode)[:, 0]
    return values[:, :height, :width]


def table(result: Validation, first_stage: int = 1) -> str:
    """A line per stage and read-out: the shares within every threshold, the median, and the valid share."""
    thresholds = list(result.centre.within)
    lines = ["stage  read-out     " + " ".join(f"{t:>6g}" for t in thresholds) + "  median   valid"]
    for stage in result.centres:
        if stage < first_stage:
            continue
        readouts = {"centre": result.centres, "expectation": result.expectations, "smooth": result.smooth}
        for name, errors in ((name, of[stage]) for name, of in readouts.items() if stage in of):
            shares = " ".join(f"{100 * errors.within[t]:6.1f}" for t in thresholds)
            valid = f"{100 * result.valid_share[stage]:6.1f}"
            lines.append(f"{stage:>5}  {name:<12} {shares}  {errors.median:6.3f}  {valid}")
    shares = " ".join(f"{100 * result.final.within[t]:6.1f}" for t in thresholds)
    lines.append(f"final  network's own {shares}  {result.final.median:6.3f}")
    shares = " ".join(f"{100 * result.all_pixels.within[t]:6.1f}" for t in thresholds)
    lines.append(f"  all  with edges   {shares}  {result.all_pixels.median:6.3f}")
    shares = " ".join(f"{100 * result.edge_band.within[t]:6.1f}" for t in thresholds)
    lines.append(f" edge  within 2 px  {shares}  {result.edge_band.median:6.3f}")
    shares = " ".join(f"{100 * result.confidence.within[t]:6.1f}" for t in thresholds)
    lines.append(f" conf  {100 * result.confidence.share:5.1f} %      {shares}")
    lines.append(f"mean calibration error of the confidence: {result.reliability.error:.3f}")
    return "\n".join(lines)
