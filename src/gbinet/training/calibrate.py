"""Confidence that means something: after training, a map from what a network says to how often it is right.

Fitted on rendered scenes that are neither trained nor measured on: isotonic regression (pooled adjacent
violators), drawn by a few straight pieces.
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

PIXELS = 20_000  # of each sample, so that large images do not outvote small ones
SIZES = (640, 1152, 1600)  # widths of images, px: those that photos are searched at
TABLES = 5  # times as many scenes as of each difficulty
KNOTS = 20  # of the map, at most
_STEPS = 1000  # of confidence: pixels of one step are taken together
LIKELY = 0.5  # what fusion asks of calibrated weights: pixels more likely wrong than right are dropped


@dataclass(frozen=True)
class Calibrated:
    """A map, and what it does on the pixels that it was fitted to."""

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
    """Samples of both validation sets. Of each size (width in px; the height is 4/5 of it) `scenes` of each
    difficulty, and five times as many tables; no two sizes show the same scene."""
    part = "free" if assets is None else "assets"
    for turn, width in enumerate(sizes):
        size = (width, -(-width * 4 // 5 // 8) * 8)
        tables, others = TABLES * scenes, first + turn * scenes
        for sample in chain(
            validation_samples(part, assets, size, device, tables, first=first + turn * tables),
            life_samples(assets, size, device, scenes, first=others),
        ):
            yield sample.batch()


def observe(
    model: GBiNet, samples: Iterable[Batch], pixels: int = PIXELS
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Of every sample its name, and of some pixels that can be judged confidence [N] and right [N]."""
    for number, sample in enumerate(samples):
        seen = predict(model, sample)
        said, right = seen.confidence[seen.judged].cpu(), seen.right[seen.judged].cpu()
        order = torch.randperm(len(said), generator=torch.Generator().manual_seed(number))[:pixels]
        yield sample.names[0], said[order], right[order]


def fit(said: Tensor, right: Tensor, knots: int = KNOTS) -> Calibration:
    """The map for pixels with these confidences [N], of which some are right [N] bool."""
    if len(said) < 2 or len(said) != len(right):
        raise InputError(f"a calibration needs pixels, got {len(said)} confidences and {len(right)} answers")
    values = said.double().numpy()
    group = np.rint(values * _STEPS).astype(np.int64)
    count, hits = np.bincount(group), np.bincount(group, right.double().numpy())
    x = np.flatnonzero(count)
    y = pooled(hits[x] / count[x], count[x].astype(np.float64))
    # Knots where the pixels are, and as many at even distances: few pixels are doubtful, but these matter.
    share = np.linspace(0, 1, knots // 2)
    at = np.unique(np.rint(np.concatenate([np.quantile(values, share), share]) * _STEPS))
    return Calibration((at / _STEPS).tolist(), np.interp(at, x, y).tolist())


def pooled(values: Floats, weights: Floats) -> Floats:
    """Isotonic regression: the sequence that never falls and is nearest to the values [N], weighted."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, length = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            before, heavy, long = blocks.pop()
            mean = (before * heavy + mean * total) / (heavy + total)
            total, length = total + heavy, length + long
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
    """Fit the map for a weights file of ours and write it into its header, beside what fusion should ask.

    Args:
        path: The file; a map that it has already is replaced. Its tensors stay bit for bit.
        assets: Folder of objects and textures, as in training; None: generated shapes.
        device: Where to render and to search.
        scenes: Of each difficulty and size; and five times as many tables of each size.
        sizes: Widths of the images, px.
        progress: Called with the name of every sample that is done.
    """
    if scenes < 1 or not sizes or min(sizes) < 64:
        raise InputError(f"calibration needs scenes, and images of 64 px or more, got {scenes} and {sizes}")
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: only weights files of gbinet (.safetensors) hold a calibration")
    model = GBiNet.from_pretrained(path).to(device)
    model.calibration = None  # the new map starts from what the network itself says
    said, right = [], []
    for name, confidence, answers in observe(model, held_back(assets, device, scenes, sizes)):
        said.append(confidence)
        right.append(answers)
        progress(name)
    before, truth = torch.cat(said), torch.cat(right)
    calibration = fit(before, truth)
    weights.set_confidence(path, LIKELY, calibration)
    return Calibrated(calibration, reliability(before, truth), reliability(calibration(before), truth))
