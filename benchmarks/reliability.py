"""Measures how well confidence predicts correct pixels, before and after calibration.

    python benchmarks/reliability.py --weights FILE --scenes 1 --sizes 320 640 --picture reliability.png
    python benchmarks/reliability.py --weights FILE --real ../shared/scenes/fountain-P11 --max-size 640

On rendered scenes of both validation sets, a pixel is correct if its point, projected into the source
views, is at most one pixel off (`is_right` in `gbinet.model.geometry`). It is wrong if there is no surface.
Real scenes have no ground truth: there a pixel counts as correct if at least two of the view's four best
source views confirm it within 1 px (see agreement.py). The first table counts all pixels. The second leaves
out those that lie in the images of fewer than two source views, where they could not be confirmed. "before"
is the network's own confidence, "after" is the confidence after the calibration curve in the header of the
weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from _common import report
from agreement import AGREEING, SOURCES, maps_of, part_of, second_best
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.evaluation.plots import Curve, plot
from gbinet.evaluation.reliability import Reliability, reliability
from gbinet.inference.device import pick_device
from gbinet.inference.predictor import DepthConfig
from gbinet.model.gbinet import GBiNet
from gbinet.scenes.load import load_scene
from gbinet.training.calibrate import held_back, observe

CONFIRMED = 1.0  # px
Pixels = tuple[Tensor, Tensor]  # confidence [N] of the network itself, right [N] bool


def rendered(
    model: GBiNet, assets: Path | None, scenes: int, sizes: list[int]
) -> Iterator[tuple[str, Pixels]]:
    """Pixels of the fixed validation sets, which nothing is fitted to."""
    found: dict[str, list[Pixels]] = {}
    device = pick_device()
    for name, said, right in observe(model.to(device), held_back(assets, device, scenes, sizes, first=0)):
        found.setdefault("life" if "/" in name else "tables", []).append((said, right))
        print(name, file=sys.stderr)
    for kind, parts in found.items():
        yield f"rendered, {kind}", _together(parts)
    yield "rendered, both", _together([part for parts in found.values() for part in parts])


def real(
    model: GBiNet, path: Path, config: DepthConfig, references: int, keep: Path | None
) -> Iterator[tuple[str, Pixels]]:
    """Pixels of the depth maps of a scene, right where other views confirm them: all, and those in sight."""
    scene, chosen = part_of(load_scene(path), references)
    name = Path(model.weights_file or "weights").stem
    maps = maps_of(scene, model, config, keep / scene.name / name if keep else None)  # as agreement.py does
    pixels, in_sight = [], []
    for index in [i for i in chosen if i in maps]:
        best = [maps[s.index] for s in scene.views[index].sources[:SOURCES] if s.index in maps]
        confidence = maps[index].confidence
        assert confidence is not None
        error = second_best(maps[index], best)
        pixels.append((confidence.flatten().cpu(), (error <= CONFIRMED).flatten().cpu()))
        in_sight.append(_views_that_show(maps[index], best).flatten().cpu() >= AGREEING)
    said, right = _together(pixels)
    shown = torch.cat(in_sight)
    yield scene.name, (said, right)
    yield f"{scene.name}, in two images", (said[shown], right[shown])


def _views_that_show(reference: DepthMap, sources: list[DepthMap]) -> Tensor:
    """In how many sources' images the points of a depth map lie, [H, W]."""
    points = reference.points()
    count = torch.zeros_like(reference.depth, dtype=torch.long)
    for camera in (source.camera.to(dtype=points.dtype) for source in sources):
        pixel, depth = camera.project(points)
        size = torch.tensor([camera.width, camera.height], device=pixel.device)
        count += (depth > 0) & ((pixel >= 0) & (pixel <= size)).all(-1)
    return count


def _together(parts: list[Pixels]) -> Pixels:
    return torch.cat([said for said, _ in parts]), torch.cat([right for _, right in parts])


def draw(path: Path, name: str, found: dict[str, Reliability]) -> None:
    ideal = Curve("what it should be", np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    curves = [
        Curve(
            f"{when}: error {r.error:.3f}",
            np.array([b.confidence for b in r.bins]),
            np.array([b.right for b in r.bins]),
        )
        for when, r in found.items()
    ]
    plot(path, [ideal, *curves], title=name, x_label="confidence", y_label="share of right pixels", top=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", default=None, help="file or name; without it, the bundled weights")
    parser.add_argument("--scenes", type=int, default=0, help="rendered scenes of each difficulty and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[320, 640], help="their widths")
    parser.add_argument("--assets", type=Path, default=None)
    parser.add_argument("--real", type=Path, nargs="*", default=[])
    parser.add_argument("--max-size", type=int, default=640, help="of real photos")
    parser.add_argument("--references", type=int, default=0, help="views to look at; 0 = all")
    parser.add_argument("--keep", type=Path, default=None, help="folder where depth maps stay")
    parser.add_argument("--picture", type=Path, default=None, help="diagrams, one PNG a scene")
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    model = GBiNet.from_pretrained(given.weights)
    calibration, model.calibration = model.calibration, None
    parts: dict[str, Pixels] = {}
    if given.scenes:
        parts.update(rendered(model, given.assets, given.scenes, given.sizes))
    config = DepthConfig(max_size=given.max_size)
    for path in given.real:
        parts.update(real(model, path, config, given.references, given.keep))
    figures = {}
    for name, (said, right) in parts.items():
        found = {"before": reliability(said, right)}
        if calibration is not None:
            found["after"] = reliability(calibration.cpu()(said), right)
        for when, one in found.items():
            print(f"{name}, {when}\n{one.table()}\n", file=sys.stderr)
        if given.picture:
            file = given.picture.with_stem(
                f"{given.picture.stem}-{name.replace(', ', '-').replace(' ', '-')}"
            )
            draw(file, name, found)
        figures[name] = {when: one.to_dict() for when, one in found.items()}
    report("reliability", figures, given.out)


if __name__ == "__main__":
    main()
