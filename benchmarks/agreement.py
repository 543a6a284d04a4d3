"""Compares weights on real scenes without ground truth: do depth maps of neighbouring views agree?

    python benchmarks/agreement.py SCENE --weights gbinet other.safetensors --max-size 1536

Computes depth maps of all views (or of some reference views and their source views), without filters. A pixel
is confirmed at x px if at least two of the view's four best source views project it back to within x px, at a
depth that differs by less than 1 % (a round trip through the depth map of the source view). Also prints the
share of pixels that return to within 1 px from one of the two best source views, at any depth, and the share
of depth jumps that lie on lines of the coarse maps. A jump is a change of more than 4 % between neighbouring
pixels. By chance, 12.5 % of them lie on multiples of 8 px and 25 % on multiples of 4.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from _common import report
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.fusion.consistency import reproject
from gbinet.inference.device import pick_device
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.load import load_scene
from gbinet.scenes.refine.cached import with_cameras
from gbinet.scenes.refine.refine import refine

SOURCES, AGREEING = 4, 2
PIXELS = (1.0, 0.5, 0.25)
DEPTH_SHARE = 0.01
CONFIDENT = 0.8
JUMP = 0.04


def _on(depth_map: DepthMap, device: torch.device) -> DepthMap:
    assert depth_map.confidence is not None
    return DepthMap(depth_map.depth.to(device), depth_map.camera.to(device), depth_map.confidence.to(device))


def second_best(reference: DepthMap, sources: list[DepthMap]) -> Tensor:
    """Per pixel, the distance in px that at least two sources keep; infinite where they do not. [H, W]"""
    distances = []
    for source in sources:
        back = reproject(reference, source)
        near = (back.depth - reference.depth).abs() <= DEPTH_SHARE * reference.depth
        distances.append(torch.where(near, back.distance, torch.inf))
    if len(distances) < AGREEING:
        return torch.full_like(reference.depth, torch.inf)
    return torch.stack(distances).sort(0).values[AGREEING - 1]


def part_of(scene: Scene, references: int) -> tuple[Scene, list[int]]:
    """The scene with depth wanted only for some references, evenly spread, and their sources; 0 = all."""
    count = min(references or len(scene.views), len(scene.views))
    chosen = [i * len(scene.views) // count for i in range(count)]
    wanted = {s.index for i in chosen for s in scene.views[i].sources[:SOURCES]} | set(chosen)
    views = tuple(v if i in wanted else replace(v, sources=()) for i, v in enumerate(scene.views))
    return replace(scene, views=views), chosen


def jumps(depth: Tensor, period: int) -> tuple[int, int]:
    """Depth jumps of a map [H, W] between neighbours: how many lie on multiples of `period` px, and all."""
    on, total = 0, 0
    for axis in (0, 1):
        ahead, behind = (
            depth.narrow(axis, 1, depth.shape[axis] - 1),
            depth.narrow(axis, 0, depth.shape[axis] - 1),
        )
        jump = (ahead - behind).abs() > JUMP * torch.minimum(ahead, behind)
        counts = jump.sum(1 - axis)  # by the line between pixel i and pixel i + 1
        lines = torch.arange(1, len(counts) + 1, device=depth.device) % period == 0
        on, total = on + int(counts[lines].sum()), total + int(counts.sum())
    return on, total


def maps_of(scene: Scene, model: GBiNet, config: DepthConfig, keep: Path | None) -> dict[int, DepthMap]:
    """Depth maps of the views that have sources, on the device; in `keep` they stay for the next time."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        estimate_depths(scene, model, folder, config)
        depths, device = DepthFolder(scene, folder), pick_device()
        return {i: _on(m, device) for i in range(len(scene.views)) if (m := depths.load(i)) is not None}


def figures_of(scene: Scene, chosen: list[int], maps: dict[int, DepthMap]) -> dict[str, float]:
    found, confidences, nearest = [], [], []
    lines = {8: [0, 0], 4: [0, 0]}
    for index in [i for i in chosen if i in maps]:
        reference = maps[index]
        best = [s.index for s in scene.views[index].sources[:SOURCES]]
        two = [reproject(reference, maps[i]).distance for i in best[:2] if i in maps]
        nearest.append(torch.stack(two).amin(0).flatten().cpu() if two else torch.empty(0))
        found.append(second_best(reference, [maps[i] for i in best if i in maps]).flatten().cpu())
        assert reference.confidence is not None
        confidences.append(reference.confidence.flatten().cpu())
        for period, counts in lines.items():
            on, total = jumps(reference.depth, period)
            counts[0], counts[1] = counts[0] + on, counts[1] + total
    error, confidence = torch.cat(found), torch.cat(confidences)
    sure = error[confidence > CONFIDENT]
    figures = {
        f"confirmed within {x:g} px %": round(100 * float((error <= x).float().mean()), 2) for x in PIXELS
    }
    back = torch.cat(nearest)
    figures["back within 1 px from one of two %"] = round(100 * float((back < 1).float().mean()), 2)
    figures["median px"] = round(float(error.median()), 4)
    figures[f"confidence > {CONFIDENT} %"] = round(100 * len(sure) / len(error), 2)
    figures["of these confirmed within 1 px %"] = round(100 * float((sure <= 1).float().mean()), 2)
    for period, (on, total) in lines.items():
        figures[f"jumps on multiples of {period} px %"] = round(100 * on / max(total, 1), 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenes", type=Path, nargs="+")
    parser.add_argument("--weights", nargs="+", default=["gbinet"])
    parser.add_argument("--max-size", type=int, default=1600)
    parser.add_argument("--references", type=int, default=0, help="views to look at; 0 = all")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--refine-cameras", action="store_true", help="correct given cameras first")
    parser.add_argument("--keep", type=Path, default=None, help="folder where depth maps stay")
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    config = DepthConfig(max_size=given.max_size, views=given.views)
    figures: dict[str, object] = {"max size": given.max_size, "views": given.views}
    for path in given.scenes:
        whole = load_scene(path)
        if given.refine_cameras:
            found = refine(whole)
            whole = with_cameras(whole, found)
            figures[f"{whole.name}, cameras"] = found.outcome.summary()
        scene, chosen = part_of(whole, given.references)
        for name in given.weights:
            keep = given.keep / scene.name / Path(name).stem if given.keep else None
            maps = maps_of(scene, GBiNet.from_pretrained(name), config, keep)
            figures[f"{scene.name}, {Path(name).stem}"] = figures_of(scene, chosen, maps)
    report("agreement", figures, given.out)


if __name__ == "__main__":
    main()
