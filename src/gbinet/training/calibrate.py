"""Calibration of the confidence after training: a map from confidence to the share of right pixels.

Fitted by isotonic regression (pool adjacent violators) on rendered scenes that are used for neither training
nor validation, and approximated by a few linear pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gbinet.errors import InputError
from gbinet.evaluation.reliability import Reliability, reliability
from gbinet.model import weights
from gbinet.model.calibration import Calibration
from gbinet.model.gbinet import GBiNet
from gbinet.render.validation import CALIBRATION, life_samples, validation_samples
from gbinet.scenes.batch import Batch
from gbinet.training.validate import predict

Floats = NDArray[np.float64]

PIXELS = 20_000  # of each sample, so that large images do not count more than small ones
SIZES = (640, 1152, 1600)  # widths of images, px: common working sizes of photos
TABLES = 5  # as many tables as scenes of five difficulties
KNOTS = 20  # of the map, at most
_STEPS = 1000  # of confidence: pixels of one step are pooled
MIN_CONFIDENCE = 0.5  # of calibrated weights: fusion drops pixels that are more likely wrong than right


@dataclass(frozen=True)
class Calibrated:
    """A map, and the reliability before and after it on the pixels that it was fitted to."""

    calibration: Calibration
    before: Reliability
    after: Reliability


def held_back(
    assets: Path | None = None,
    device: torch.device | str = "cpu",
    scenes: int = 2,
    sizes: Sequence[int] = SIZES,
    first: int = CALIBRATION,
) -> Iterator[Batch]:
    """Samples made like both validation sets, of other scenes at every size.

    Of each size (width in px; the height is 4/5 of it) `scenes` of each difficulty, and five times as many
    tables.
    """
    part = "free" if assets is None else "assets"
    for number, width in enumerate(sizes):
        size = (width, -(-width * 4 // 5 // 8) * 8)
        tables, others = TABLES * scenes, first + number * scenes
        for sample in chain(
            validation_samples(part, assets, size, device, tables, first=first + number * tables),
            life_samples(assets, size, device, scenes, first=others),
        ):
            yield sample.batch()


def observe(
    model: GBiNet, samples: Iterable[Batch], pixels: int = PIXELS
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """For every sample its name, and confidence and right (bool) [N] of random pixels that can be judged."""
    for number, sample in enumerate(samples):
        prediction = predict(model, sample)
        confidence = prediction.confidence[prediction.judged].cpu()
        right = prediction.right[prediction.judged].cpu()
        chosen = torch.randperm(len(confidence), generator=torch.Generator().manual_seed(number))[:pixels]
        yield sample.names[0], confidence[chosen], right[chosen]


def fit(confidence: Tensor, right: Tensor, knots: int = KNOTS) -> Calibration:
    """The map for pixels with these confidences [N], which are right or not [N] bool."""
    if len(confidence) < 2 or len(confidence) != len(right):
        raise InputError(
            f"a calibration needs pixels, got {len(confidence)} confidences and {len(right)} answers"
        )
    values = confidence.double().numpy()
    group = np.rint(values * _STEPS).astype(np.int64)
    count, hits = np.bincount(group), np.bincount(group, right.double().numpy())
    x = np.flatnonzero(count)
    y = isotonic(hits[x] / count[x], count[x].astype(np.float64))
    # Half of the knots at quantiles, half evenly spaced: doubtful pixels are few, but matter most.
    share = np.linspace(0, 1, knots // 2)
    steps = np.unique(np.rint(np.concatenate([np.quantile(values, share), share]) * _STEPS))
    return Calibration((steps / _STEPS).tolist(), np.interp(steps, x, y).tolist())


def isotonic(values: Floats, weights: Floats) -> Floats:
    """Isotonic regression: the non-decreasing sequence closest to the values [N], weighted [N]."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, length = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            previous_mean, previous_weight, previous_length = blocks.pop()
            mean = (previous_mean * previous_weight + mean * total) / (previous_weight + total)
            total, length = total + previous_weight, length + previous_length
        blocks.append((mean, total, length))
    return np.repeat([mean for mean, _, _ in blocks], [length for _, _, length in blocks])


def calibrate(
    path: Path,
    assets: Path | None = None,
    device: torch.device | str = "cpu",
    scenes: int = 2,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[str], None] = lambda name: None,
) -> Calibrated:
    """Fit the map for a weights file of ours, and write it and `min_confidence` into its header.

    Args:
        path: The file; a map that it has already is replaced. Its tensors stay the same, bit for bit.
        assets: Folder of objects and textures, as in training; None: generated shapes.
        device: For rendering and the network.
        scenes: Scenes of each difficulty and size; there are five times as many tables of each size.
        sizes: Widths of the images, px.
        progress: Called with the name of every finished sample.
    """
    if scenes < 1 or not sizes or min(sizes) < 64:
        raise InputError(f"calibration needs scenes, and images of 64 px or more, got {scenes} and {sizes}")
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: only weights files of gbinet (.safetensors) hold a calibration")
    model = GBiNet.from_pretrained(path).to(device)
    model.calibration = None  # the new map is of the network's own confidence
    confidences, rights = [], []
    for name, of_sample, right_of_sample in observe(model, held_back(assets, device, scenes, sizes)):
        confidences.append(of_sample)
        rights.append(right_of_sample)
        progress(name)
    confidence, right = torch.cat(confidences), torch.cat(rights)
    calibration = fit(confidence, right)
    weights.set_confidence(path, MIN_CONFIDENCE, calibration)
    return Calibrated(
        calibration, reliability(confidence, right), reliability(calibration(confidence), right)
    )
