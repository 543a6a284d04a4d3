"""How good a network is on samples with known depth: every stage's errors, valid shares, and confidence."""

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
    """Errors over all samples together, in their unit, of pixels whose true depth is known and in the range;
    away from depth edges unless it says otherwise."""

    centres: dict[int, DepthErrors]  # stage -> errors of the centres of the chosen bins, shown at full size
    expectations: dict[int, DepthErrors]  # stage -> errors of the continuous read-out, shown at full size
    smooth: dict[int, DepthErrors]  # stage -> the same, smoothed; none where the network does not smooth
    final: DepthErrors  # of the depth that the network gives: its own read-out of the last stage
    valid_share: dict[int, float]  # stage -> share of pixels whose true depth lies in a bin, now and before
    all_pixels: DepthErrors  # of the depth that the network gives, edges too
    edge_band: DepthErrors  # of the depth that the network gives, within 2 px of a depth edge
    confidence: ConfidenceErrors  # of the depth that the network gives
    reliability: Reliability  # of the same confidence, of all pixels that can be judged (see Prediction)

    @property
    def centre(self) -> DepthErrors:
        """Of the last stage."""
        return self.centres[max(self.centres)]

    @property
    def score(self) -> float:
        """To choose weights by: the mean over all thresholds of the share within; larger is better."""
        within = self.final.within
        return sum(within.values()) / max(len(within), 1)

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
    """What the network said about one sample, for measuring and for pictures; on the network's device."""

    image: Tensor  # [3, H, W] of the reference
    truth: Tensor  # [H, W], 0 = unknown
    depth_range: Tensor  # [2]
    counted: Tensor  # [H, W] bool: the truth is known and inside the range, so that it can be found
    centres: dict[int, Tensor]  # stage -> [H, W]
    expectations: dict[int, Tensor]  # stage -> [H, W]
    smooth: dict[int, Tensor]  # stage -> [H, W], where the network smooths
    valid: dict[int, Tensor]  # stage -> [H, W] bool
    depth: Tensor  # [H, W]: what the network gives
    confidence: Tensor  # [H, W]
    right: Tensor  # [H, W] bool: whether the depth is right: see `is_right`
    judged: Tensor  # [H, W] bool: whether it is right is known; where nothing is, it is wrong
    confidences: dict[int, Tensor] = field(default_factory=dict)  # stage -> [H, W], if asked for


@torch.no_grad()
def predict(
    model: GBiNet,
    batch: Batch,
    stages: int | None = None,
    precision: str = "float32",
    keep_confidences: bool = False,
) -> Prediction:
    """Run the search on one sample and look at every stage, in eval mode on the model's device.

    With `keep_confidences`, also the confidence that the first k stages would give, for every k.
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
        shown = partial(_full_size, size=(height, width), scale=scale, mode=model.upsample_mode)
        centres[number] = shown(model.centre_depth(stage))[0]
        expectations[number] = shown(model.expected_depth(stage))[0]
        if model.config.smoothing_of(number):
            smooth[number] = shown(search.continuous_depth(stage.next_state))[0]
    confidences: dict[int, Tensor] = {}
    if keep_confidences:
        joint = model.config.joint_confidence
        so_far: Tensor | None = None  # [1, H, W]
        for number, stage in enumerate(result.stages, start=1):
            own = model.confidence(stage)[:, 0]
            so_far = combined(_full_size(own, (height, width), model.config.scale_of(number)), so_far, joint)
            confidences[number] = so_far[0] if joint else so_far[0] / number
    image, limits = batch.images[0, 0].clone(), batch.depth_range[0]
    right = is_right(result.depth, truth, batch.cameras) & (truth > 0)
    judged = truth > 0
    if batch.complete is not None:
        judged = judged | batch.complete[:, None, None]
    found = (centres, expectations, smooth, valid, result.depth[0], result.confidence[0])
    return Prediction(image, truth[0], limits, counted[0], *found, right[0], judged[0], confidences)


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
    """Errors in percent of the depth, of all pixels, for samples NAME/NUMBER of the same name together."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for sample in samples:
        shown = predict(model, sample, stages, precision)
        truth = shown.truth[shown.counted]
        depth = 100 * shown.depth[shown.counted] / truth
        name = sample.names[0].partition("/")[0]
        found.setdefault(name, []).append((depth, torch.full_like(depth, 100.0)))
    maps = {name: [torch.cat(m) for m in zip(*pairs, strict=True)] for name, pairs in found.items()}
    return {name: depth_errors(d, t, thresholds=PERCENTS) for name, (d, t) in maps.items()}


def table_by_name(results: Mapping[str, DepthErrors]) -> str:
    """A name per line: its share of all pixels, and of these the shares within each percentage."""
    pixels = max(sum(errors.pixels for errors in results.values()), 1)
    heads = " ".join(f"{f'{p:g} %':>7}" for p in PERCENTS)
    lines = [f"{'difficulty':<12} pixels {heads}  median"]
    for name, errors in results.items():
        shares = " ".join(f"{100 * errors.within[p]:7.1f}" for p in PERCENTS)
        lines.append(f"{name:<12} {100 * errors.pixels / pixels:5.1f}% {shares}  {errors.median:5.2f}%")
    return "\n".join(lines)


def _inside(model: GBiNet, stage: Stage, truth: Tensor) -> Tensor:
    """Full-size pixels [1, H, W] whose true depth can be answered by the cell that covers them."""
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
    """A stage per line: share within every threshold, centre and continuous, and the valid share."""
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
