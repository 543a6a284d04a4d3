"""Do depth maps of neighbouring views agree? Weights compared on a real scene that has no truth.

    python benchmarks/agreement.py SCENE --weights gbinet other.safetensors --max-size 768 --references 5

For some reference views spread over the scene, the depth maps of the view and of its two best sources are
computed. The re-projection error of a pixel is that against the better of the two sources. Reported per
weights: share of pixels under 1 px, of all, of the more confident half, and of those with confidence > 0.8.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from _common import report

from gbinet.data.load import load_scene
from gbinet.fusion.consistency import reproject
from gbinet.inference.predictor import DepthConfig, DepthFolder, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.scene import Scene

CONFIDENT = 0.8


def part_of(scene: Scene, references: int) -> tuple[Scene, list[int]]:
    """The scene with depth wanted only for some references and their two best sources."""
    count = min(references, len(scene.views))
    chosen = [i * len(scene.views) // count for i in range(count)]
    wanted = set(chosen)
    for index in chosen:
        wanted.update(s.index for s in scene.views[index].sources[:2])
    views = tuple(v if i in wanted else replace(v, sources=()) for i, v in enumerate(scene.views))
    return replace(scene, views=views), chosen


def agreement(scene: Scene, chosen: list[int], model: GBiNet, config: DepthConfig) -> dict[str, float]:
    distances, confidences = [], []
    with tempfile.TemporaryDirectory() as folder:
        estimate_depths(scene, model, Path(folder), config)
        depths = DepthFolder(scene, Path(folder))
        for index in chosen:
            reference = depths.load(index)
            sources = [depths.load(s.index) for s in scene.views[index].sources[:2]]
            assert reference is not None and reference.confidence is not None
            found = [reproject(reference, s).distance for s in sources if s is not None]
            distances.append(torch.stack(found).amin(0).flatten())
            confidences.append(reference.confidence.flatten())
    error, confidence = torch.cat(distances), torch.cat(confidences)
    best_half = error[confidence >= confidence.median()]
    sure = error[confidence > CONFIDENT]
    return {
        "all within 1 px": round(float((error < 1).float().mean()), 4),
        "confident half within 1 px": round(float((best_half < 1).float().mean()), 4),
        "confident half, median px": round(float(best_half.median()), 4),
        f"share with confidence > {CONFIDENT}": round(len(sure) / len(error), 4),
        "of these within 1 px": round(float((sure < 1).float().mean()), 4),
        "of these within 0.25 px": round(float((sure < 0.25).float().mean()), 4),
        "median confidence": round(float(confidence.median()), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scene", type=Path)
    parser.add_argument("--weights", nargs="+", default=["gbinet"])
    parser.add_argument("--stages", nargs="+", type=int, default=[0], help="0 = what the weights say")
    parser.add_argument("--first-bins", type=int, default=0, help="bins of stage 1, whatever the weights say")
    parser.add_argument("--inverse", action="store_true", help="bins equal in 1/depth in any case")
    parser.add_argument("--references", type=int, default=5)
    parser.add_argument("--max-size", type=int, default=768)
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    scene, chosen = part_of(load_scene(given.scene), given.references)
    figures: dict[str, object] = {"scene": scene.name, "references": [scene.views[i].name for i in chosen]}
    for name in given.weights:
        model = GBiNet.from_pretrained(name)
        if given.first_bins:
            model.config = replace(model.config, first_bins=given.first_bins, first_spacing=0.0)
        if given.inverse:
            model.config = replace(model.config, inverse_depth=True)
        for stages in given.stages:
            config = DepthConfig(max_size=given.max_size, views=given.views, stages=stages or None)
            label = f"{Path(name).stem}, {stages or model.config.stages} stages"
            figures[label] = agreement(scene, chosen, model, config)
    report("agreement", figures, given.out)


if __name__ == "__main__":
    main()
