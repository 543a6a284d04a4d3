"""Scores of the depth maps of a scene, from files; one view is in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gbinet.camera import pixel_centres
from gbinet.errors import InputError, SceneError, check_positive
from gbinet.evaluation.depth import (
    THRESHOLDS,
    DepthErrors,
    away_from_edges,
    confidence_errors,
    depth_errors,
)
from gbinet.formats.depth_files import SUFFIXES, depth_files_in, read_confidence, read_depth
from gbinet.formats.made_by import makers_of
from gbinet.scenes.depth_folder import maps_folder
from gbinet.scenes.depth_scales import StatedScales

CONFIDENCES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
_LOG_LOW, _LOG_HIGH, _BINS = -7.0, 7.0, 14_000  # histogram of log10(error): bins of 0.23 %


@dataclass(frozen=True)
class DepthPair:
    """The files of a predicted depth map and of the true one."""

    name: str
    depth: Path
    truth: Path
    depth_scale: float = 1.0  # stored value times this = unit of the scene
    truth_scale: float = 1.0


@dataclass(frozen=True)
class ConfidentShare:
    """Scores of the pixels above a confidence."""

    above: float  # the confidence
    share: float  # of the pixels with known truth that are more confident
    within: dict[float, float]  # threshold -> share of these that are at most this far off


@dataclass(frozen=True)
class SceneDepth:
    """Scores over all pixels of a scene; the median is read off a histogram, exact to 0.3 %."""

    errors: DepthErrors
    smooth: DepthErrors  # without depth edges and their neighbourhood
    confident: tuple[ConfidentShare, ...]  # empty where the maps have no confidence
    ause: float | None  # area under the sparsification error: mean over views
    views: dict[str, DepthErrors]


def find_pairs(
    predictions: str | Path,
    truth: str | Path,
    depth_scale: float | None = None,
    truth_scale: float | None = None,
    images: str | Path | None = None,
) -> list[DepthPair]:
    """Match depth files by name; `truth` is a scene with depth, or a folder of depth files.

    Scales: None = what the files of a folder state (StatedScales), else 1.
    """
    folder = maps_folder(predictions)
    truths = _find_truths(Path(truth), truth_scale, images)
    found = _scaled(folder, depth_scale)
    pairs = [
        DepthPair(name, found[name][0], path, found[name][1], scale)
        for name, (path, scale) in sorted(truths.items())
        if name in found
    ]
    _refuse_predictions(pairs)
    if not pairs:
        raise SceneError(
            f"{folder} and {truth} have no view in common; depth files must be named like the views "
            f"(here {', '.join(sorted(truths)[:3])}, ...) and end in {', '.join(SUFFIXES)}"
        )
    return pairs


def _refuse_predictions(pairs: Sequence[DepthPair]) -> None:
    """Raise a SceneError if a truth is itself a prediction: scores against it would mean nothing."""
    same = [pair.truth for pair in pairs if pair.truth.samefile(pair.depth)]
    if same:
        raise SceneError(f"{same[0]}: is given as prediction and as truth; give the true depth")
    for path, maker in makers_of(pair.truth for pair in pairs).items():
        weights = maker.get("weights_file") or maker.get("weights")
        raise SceneError(
            f"{path}: is a prediction (gbinet {maker.get('gbinet')}, weights {weights}), not true depth; "
            "give the scene or the folder that holds the true depth"
        )


def _scaled(folder: Path, scale: float | None) -> dict[str, tuple[Path, float]]:
    """Name of a view -> its depth map in a folder, and the scale of stored values."""
    files = depth_files_in(folder)
    if scale is not None:
        return {name: (path, scale) for name, path in files.items()}
    stated = StatedScales(folder)
    return {name: (path, stated.of(path)) for name, path in files.items()}


def _find_truths(
    truth: Path, scale: float | None, images: str | Path | None
) -> dict[str, tuple[Path, float]]:
    """Name of a view -> the file of its true depth, and the scale of stored values."""
    from gbinet.scenes.load import load_scene

    if _holds_only_depth(truth):
        return _scaled(truth, scale)
    factor = 1.0 if scale is None else scale
    scene = load_scene(truth, images=images)
    known = {v.name: (v.depth_path, v.depth_scale * factor) for v in scene.views if v.depth_path is not None}
    if not known:
        hints = [f"; {note}" for note in scene.warnings if "predictions" in note]
        raise SceneError(
            f"{truth}: this {scene.kind} scene has no true depth to compare with{''.join(hints)}"
        )
    return known


def _holds_only_depth(folder: Path) -> bool:
    """Whether a folder holds depth files and nothing else; a scene's folder has other things in it."""
    if not folder.is_dir():
        raise SceneError(f"{folder}: there is no such folder")
    entries = [p for p in folder.iterdir() if not p.name.startswith(".")]
    files = [p for p in entries if p.is_file() and p.suffix.lower() in SUFFIXES]
    return bool(files) and len(files) == sum(p.suffix not in (".json", ".txt", ".md") for p in entries)


def read_pair(pair: DepthPair) -> tuple[Tensor, Tensor, Tensor | None]:
    """Depth, truth and confidence, all [H, W] of the prediction; a truth of another size is sampled."""
    depth = read_depth(pair.depth, pair.depth_scale)
    truth = read_depth(pair.truth, pair.truth_scale)
    confidence = read_confidence(pair.depth)
    if confidence is not None and confidence.shape != depth.shape:
        raise InputError(f"{pair.depth}: confidence is {confidence.shape}, depth {depth.shape}")
    if truth.shape != depth.shape:
        truth = _sampled(pair, truth, depth.shape)
    return (
        torch.from_numpy(depth),
        torch.from_numpy(truth),
        None if confidence is None else torch.from_numpy(confidence),
    )


def _sampled(pair: DepthPair, truth: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The truth at the pixel centres of a map of another size, never mixed from two depths."""
    (H, W), (h, w) = truth.shape, shape
    if abs(H / W * w / h - 1) > 0.02:
        raise InputError(
            f"{pair.depth} is {w}x{h} but the truth {pair.truth} is {W}x{H}, of another shape; "
            "was one of them cropped? Only maps of the same field of view can be compared"
        )
    centres = pixel_centres(h, w, dtype=torch.float64)  # [h, w, 2]
    columns = (centres[0, :, 0] * W / w).long().numpy()  # the pixel of the truth that holds a centre
    rows = (centres[:, 0, 1] * H / h).long().numpy()
    return np.ascontiguousarray(truth[rows][:, columns])


class DepthTotals:
    """Sums of the errors of views."""

    def __init__(self, thresholds: Sequence[float]) -> None:
        self.thresholds = tuple(thresholds)
        self.pixels = 0
        self.answered = 0.0
        self.sum = 0.0
        self.within = np.zeros(len(self.thresholds))
        self.histogram = np.zeros(_BINS, dtype=np.int64)

    def add(self, errors: DepthErrors, pixel_errors: Tensor) -> None:
        """Add a view: its figures, and the errors of its pixels that have a depth [N]."""
        answered = errors.pixels * errors.answered
        self.pixels += errors.pixels
        self.answered += answered
        self.sum += errors.mean * answered
        self.within += errors.pixels * np.array([errors.within[t] for t in self.thresholds])
        logs = np.log10(np.maximum(pixel_errors.double().numpy(), 10**_LOG_LOW))
        self.histogram += np.histogram(np.minimum(logs, _LOG_HIGH), _BINS, (_LOG_LOW, _LOG_HIGH))[0]

    def result(self) -> DepthErrors:
        pixels = max(self.pixels, 1)
        within = dict(zip(self.thresholds, (self.within / pixels).tolist(), strict=True))
        mean = self.sum / self.answered if self.answered else 0.0
        return DepthErrors(self.pixels, self.answered / pixels, within, mean, self._median())

    def _median(self) -> float:
        total = self.histogram.sum()
        if total == 0:
            return 0.0
        index = int(np.searchsorted(self.histogram.cumsum(), total / 2))
        middle = _LOG_LOW + (index + 0.5) * (_LOG_HIGH - _LOG_LOW) / _BINS
        return 0.0 if index == 0 else float(10**middle)

    def share_by_error(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the answered pixels whose error lies between consecutive edges."""
        borders = np.linspace(_LOG_LOW, _LOG_HIGH, _BINS + 1)
        below = np.concatenate([[0], self.histogram.cumsum()])
        with np.errstate(divide="ignore"):
            at = np.interp(np.log10(edges), borders, below, left=0)
        return np.asarray(np.diff(at) / max(int(self.histogram.sum()), 1))


class DepthEvaluation:
    """Collects the scores of views, one after the other."""

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS) -> None:
        if not thresholds:
            raise InputError("at least one threshold is needed")
        check_positive("thresholds", *thresholds)
        self.thresholds = tuple(thresholds)
        self.all, self.smooth = DepthTotals(thresholds), DepthTotals(thresholds)
        self.views: dict[str, DepthErrors] = {}
        self._confident: dict[float, list[tuple[float, dict[float, float]]]] = {c: [] for c in CONFIDENCES}
        self._ause: list[float] = []

    def add(self, name: str, depth: Tensor, truth: Tensor, confidence: Tensor | None) -> Tensor:
        """Add a view [H, W]; returns its error map: NaN where the truth is unknown, inf where depth is."""
        known, given = truth > 0, depth > 0
        errors = torch.where(known, torch.where(given, (depth - truth).abs(), torch.inf), torch.nan)
        smooth = away_from_edges(truth)
        for totals, mask in ((self.all, known), (self.smooth, known & smooth)):
            figures = depth_errors(depth, truth, mask, self.thresholds)
            totals.add(figures, errors[mask & given])
            if totals is self.all:
                self.views[name] = figures
        if confidence is not None:
            self._add_confidence(depth, truth, confidence, int(known.sum()))
        return errors

    def _add_confidence(self, depth: Tensor, truth: Tensor, confidence: Tensor, pixels: int) -> None:
        for above, found in self._confident.items():
            errors = confidence_errors(depth, confidence, truth, above=above, thresholds=self.thresholds)
            found.append((errors.share * pixels, errors.within))
        self._ause.append(errors.ause)

    def result(self) -> SceneDepth:
        confident = []
        for above, found in self._confident.items():
            total = sum(count for count, _ in found)
            if found:
                within = {
                    t: sum(count * shares[t] for count, shares in found) / max(total, 1)
                    for t in self.thresholds
                }
                confident.append(ConfidentShare(above, total / max(self.all.pixels, 1), within))
        ause = sum(self._ause) / len(self._ause) if self._ause else None
        return SceneDepth(self.all.result(), self.smooth.result(), tuple(confident), ause, dict(self.views))


def mean_errors(scenes: Sequence[DepthErrors]) -> DepthErrors:
    """The mean over scenes of each figure; pixels are summed."""
    if not scenes:
        raise InputError("there are no scenes to average")
    n = len(scenes)
    within = {t: sum(s.within[t] for s in scenes) / n for t in scenes[0].within}
    return DepthErrors(
        sum(s.pixels for s in scenes),
        sum(s.answered for s in scenes) / n,
        within,
        sum(s.mean for s in scenes) / n,
        sum(s.median for s in scenes) / n,
    )
