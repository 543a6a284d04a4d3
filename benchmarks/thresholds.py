"""Measures precision and recall of fusion for different thresholds, on rendered scenes with known surface.

    python benchmarks/thresholds.py --weights FILE --seeds 8 3 --max-size 448
    python benchmarks/thresholds.py --backgrounds white sky    # objects in front of a blank background
    python benchmarks/thresholds.py --views 4 --only default strict_views min_views

Depth is estimated once per scene, then fused with one threshold changed at a time. Precision is the share
of the cloud within a distance of the true surface; recall is the share of the true surface within it of the
cloud.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from _common import report

from gbinet.depthmap import DepthMap
from gbinet.formats.depth_files import read_depth, write_depth
from gbinet.formats.image import read_image, write_image
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.demo import DemoConfig, render_scene, score
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder


def variants() -> Iterator[tuple[str, FusionConfig]]:
    base = FusionConfig()
    yield "default", base
    for value in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
        yield f"min_confidence {value}", replace(base, min_confidence=value)
    for value in (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        for burnt_out in (True, False):
            name = f"blank_confidence {value}{', burnt-out pixels kept' if burnt_out else ''}"
            yield name, replace(base, blank_confidence=value, keep_burnt_out=burnt_out)
    yield "keep_sky", replace(base, keep_sky=True)
    for value in (0.5, 0.7, 0.8, 0.9, 0.95):
        yield f"certainty {value}", replace(base, certainty=value)
    for count in (1, 2, 3, 4):
        yield f"min_views {count}", replace(base, min_views=count)
    yield "strict_views", replace(base, min_views=3, strict_views=True)
    for value in (0.25, 0.5, 1.0, 2.0):
        yield f"max_reprojection {value}", replace(base, max_reprojection=value)
    yield (
        "dynamic 0.25 px",
        replace(base, dynamic=True, max_reprojection=0.25, max_relative_depth=1 / 1300, min_views=2),
    )
    yield "duplicates voxel", replace(base, duplicates="voxel")
    yield "duplicates none", replace(base, duplicates="none")


def before(background: str, scene: Scene, seed: int) -> None:
    """Replace the table in the photos, and take it out of the truth: only what stands on it is left."""
    rng = np.random.default_rng(seed)
    for view in scene.views:
        assert view.depth_path is not None
        depth = read_depth(view.depth_path)
        height = DepthMap(torch.from_numpy(depth), view.camera).points()[..., 2].numpy()
        blank = (height < 0.004) | (depth <= 0)  # metres above the table
        pixels = read_image(view.image_path).copy()
        if background == "white":
            pixels[blank] = 255
        else:
            down = np.linspace(0, 1, len(pixels))[:, None, None]
            sky = np.array([120, 175, 235]) * (1 - down) + np.array([225, 240, 250]) * down
            noisy = (sky + rng.normal(0, 1, pixels.shape)).clip(0, 255).astype(np.uint8)
            pixels[blank] = noisy[blank]
        write_image(view.image_path, pixels)
        write_depth(view.depth_path, np.where(blank, 0, depth).astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights")
    parser.add_argument("--seeds", type=int, nargs="+", default=[8, 3])
    parser.add_argument("--max-size", type=int, default=448)
    parser.add_argument("--views", type=int, default=DemoConfig.views, help="photos of each scene")
    parser.add_argument("--backgrounds", nargs="+", default=["table"], choices=("table", "white", "sky"))
    parser.add_argument("--only", nargs="+", help="only variants whose names begin so")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = GBiNet.from_pretrained(options.weights)
    sums: dict[str, list[tuple[float, float, float, int]]] = {}
    for seed, background in itertools.product(options.seeds, options.backgrounds):
        height = options.max_size * 3 // 4
        config = DemoConfig(width=options.max_size, height=height, seed=seed, views=options.views)
        threshold = config.threshold * 0.75
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            scene = render_scene(place / "scene", config)
            if background != "table":
                before(background, scene, seed)
            depth = DepthConfig(max_size=options.max_size, device=options.device)
            estimate_depths(scene, model, place / "depth", depth)
            for name, fusion in variants():
                if options.only and not name.startswith(tuple(options.only)):
                    continue
                fuse(scene, DepthFolder(scene, place / "depth"), place / "cloud.ply", fusion)
                found = score(place / "cloud.ply", scene, threshold)
                values = (
                    found.precision[threshold],
                    found.recall[threshold],
                    found.fscore[threshold],
                    found.points,
                )
                sums.setdefault(name, []).append(values)
    figures = {}
    for name, rows in sums.items():
        precision, recall, fscore, points = (sum(column) / len(rows) for column in zip(*rows, strict=True))
        figures[name] = {
            "precision": round(precision, 4),
            "recall": round(recall, 4),
            "fscore": round(fscore, 4),
            "points": round(points),
        }
    report("fusion thresholds", figures, options.out)


if __name__ == "__main__":
    main()
