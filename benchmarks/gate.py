"""Checks the accuracy of the engine (its precision and kernels) against the float32 network.

    python benchmarks/gate.py                                          # GPU: 1600x1152, float16
    python benchmarks/gate.py --device cpu --size 160x128 --scenes 1   # anywhere
    python benchmarks/gate.py --assets FOLDER                          # also the scenes with objects

The reference is the plain network in float32 (no TF32, no kernels of ours), on the same validation scenes.
The check passes if no share of pixels within a threshold differs by more than 0.2 percentage points, and if
at least 99 % of the pixels whose confidence in the reference is above 0.8 have depths at most one bin of
the last stage apart.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from _common import report
from torch import Tensor

from gbinet.evaluation.depth import THRESHOLDS, away_from_edges
from gbinet.inference.device import pick_device
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet, SearchResult
from gbinet.render.source import Sample
from gbinet.render.validation import PARTS, validation_samples

LARGEST_DIFFERENCE = 0.2  # percentage points
CONFIDENT = 0.8
SMALLEST_SHARE = 0.99  # of the confident pixels within one bin


class Counts:
    """Pixels counted over all scenes of a part."""

    def __init__(self) -> None:
        self.pixels = {"smooth": 0, "all": 0}  # whose true depth is known and in the range
        self.within = {
            who: {k: dict.fromkeys(THRESHOLDS, 0) for k in self.pixels} for who in ("engine", "plain")
        }
        self.confident = 0
        self.same_bin = 0

    def add(
        self, sample: Sample, engine: SearchResult, plain: SearchResult, bins: float, model: GBiNet
    ) -> None:
        truth, (near, far) = sample.depth, sample.depth_range.tolist()
        known = (truth >= near) & (truth <= far)
        masks = {"smooth": known & away_from_edges(truth), "all": known}
        for kind, mask in masks.items():
            self.pixels[kind] += int(mask.sum())
            for who, result in (("engine", engine), ("plain", plain)):
                error = (result.depth[0] - truth).abs()[mask]
                for threshold in THRESHOLDS:
                    self.within[who][kind][threshold] += int((error <= threshold).sum())
        sure = plain.confidence[0] > CONFIDENT
        ends = sample.depth_range[None]
        apart = self._position(engine, ends, model) - self._position(plain, ends, model)
        self.confident += int(sure.sum())
        self.same_bin += int(((apart.abs() * bins <= 1.001) & sure).sum())

    @staticmethod
    def _position(result: SearchResult, ends: Tensor, model: GBiNet) -> Tensor:
        return model.config.grid.to_position(result.depth, ends)[0]  # in [0, 1]: where bins are equal

    def figures(self) -> dict[str, object]:
        found: dict[str, object] = {"confident pixels": self.confident}
        for kind, pixels in self.pixels.items():
            for threshold in THRESHOLDS:
                shares = [100 * self.within[w][kind][threshold] / max(pixels, 1) for w in ("engine", "plain")]
                found[f"{kind}, within {threshold:g}"] = {
                    "engine %": round(shares[0], 3),
                    "float32 %": round(shares[1], 3),
                    "difference": round(shares[0] - shares[1], 3),
                }
        found["confident within one bin"] = round(self.share, 5) if self.confident else None
        found["largest difference"] = round(self.largest, 3)
        found["passed"] = self.passed
        return found

    @property
    def share(self) -> float:
        return self.same_bin / self.confident if self.confident else 1.0  # none: nothing to check

    @property
    def largest(self) -> float:
        """Largest difference of a share, in percentage points."""
        return max(
            100 * abs(self.within["engine"][kind][t] - self.within["plain"][kind][t]) / max(pixels, 1)
            for kind, pixels in self.pixels.items()
            for t in THRESHOLDS
        )

    @property
    def passed(self) -> bool:
        return self.largest <= LARGEST_DIFFERENCE and self.share >= SMALLEST_SHARE


@torch.inference_mode()
def compare(model: GBiNet, engine: GBiNet, samples: Iterator[Sample], stages: int) -> Counts:
    counts = Counts()
    bins = model.config.grid.cells(stages)
    for sample in samples:
        inputs = (sample.images[None], sample.cameras[None], sample.depth_range[None])
        fast = engine(*inputs, stages=stages)
        os.environ["GBINET_KERNELS"] = "plain"
        plain = model(*inputs, stages=stages)
        del os.environ["GBINET_KERNELS"]
        counts.add(sample, fast, plain, bins, model)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--precision", choices=["float16", "bfloat16", "float32"], help="default: the engine's"
    )
    parser.add_argument("--size", default="1600x1152", help="WIDTHxHEIGHT")
    parser.add_argument("--scenes", type=int, default=8, help="per part")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--stages", type=int, help="default: the network's")
    parser.add_argument("--weights", help="file or name; default: the bundled weights")
    parser.add_argument("--assets", type=Path, help="folder of objects: the part 'assets' too")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device = pick_device(given.device)
    width, height = (int(n) for n in given.size.split("x"))
    model = GBiNet.from_pretrained(given.weights).to(device).eval()
    dtype = getattr(torch, given.precision) if given.precision else None
    engine = prepare(model, device, dtype)
    stages = given.stages or model.config.stages
    settings = {"weights": given.weights or "bundled", "stages": stages, "scenes per part": given.scenes}
    settings |= {"size": given.size, "views": given.views, "dtype": str(next(engine.parameters()).dtype)}
    figures: dict[str, object] = dict(settings)
    passed = True
    for part in PARTS if given.assets else PARTS[:1]:
        size = (width, height)
        samples = validation_samples(part, given.assets, size, device, given.scenes, given.views)
        counts = compare(model, engine, samples, stages)
        figures[part] = counts.figures()
        passed = passed and counts.passed
    report("gate", {**figures, "passed": passed}, given.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
