"""Measures a whole scene with the feature cache: time per view in the network, and with reading and writing.

    python benchmarks/scene.py                                             # GPU: 49 views, 1600x1152
    python benchmarks/scene.py --device cpu --views 5 --size 160x128

The photos are noise, with cameras on a 7-wide grid. Each is read as a JPEG, and each depth map is written,
as by `gbinet depth`. The time of the network covers encoding each photo once and searching each view, with
a wait for the GPU. The wall-clock time runs from the first photo read to the last map written.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path

import numpy as np
import torch
from _common import report
from PIL import Image

from gbinet.camera import Camera
from gbinet.inference.device import pick_device
from gbinet.inference.graphs import GRAPHS, GraphedNetwork
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet
from gbinet.scene import DepthRange, Scene, SourceView, View

COLUMNS = 7
STEP = 60.0  # between neighbouring cameras, in the unit of the range
RANGE = DepthRange(425.0, 935.0)


def make_scene(folder: Path, count: int, width: int, height: int) -> Scene:
    """Photos of smooth noise; the sources of a view are the ten nearest ones."""
    rng = np.random.default_rng(0)
    focal = 2892.0 * width / 1600
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
    centres = np.array([(i % COLUMNS, i // COLUMNS) for i in range(count)], dtype=float) * STEP
    views = []
    for i, centre in enumerate(centres):
        small = rng.integers(0, 255, (height // 4, width // 4, 3), dtype=np.uint8)
        path = folder / f"{i:03d}.jpg"
        Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR).save(path, quality=95)
        pose = torch.eye(4, dtype=torch.float64)
        pose[:2, 3] = -torch.from_numpy(centre)
        distance = np.linalg.norm(centres - centre, axis=1)
        nearest = np.argsort(distance, kind="stable")[1:11]
        sources = tuple(SourceView(int(j), float(1 / distance[j])) for j in nearest)
        views.append(View(f"{i:03d}", Camera(K, pose, width, height), path, RANGE, sources))
    return Scene("grid", "made", folder, tuple(views))


def run(scene: Scene, engine: GraphedNetwork, config: DepthConfig, views: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as out:
        result = estimate_depths(scene, engine, Path(out), config)
    return {
        "network ms per view": round(1e3 * result.network_seconds / views, 2),
        "wall ms per view": round(1e3 * result.seconds / views, 2),
        "views": len(result.computed),
        "encoded": result.encoded,
        "encoded again": result.encoded_again,
    }


def two_passes(scene: Scene, engine: GraphedNetwork, config: DepthConfig, views: int) -> dict[str, object]:
    """The first pass compiles kernels and records graphs; the second is what further scenes cost."""
    name = f"{'with' if engine.graphs.limit else 'without'} CUDA graphs"
    on_gpu = next(engine.parameters()).is_cuda
    figures: dict[str, object] = {f"{name}, first pass": run(scene, engine, config, views)}
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    figures[name] = run(scene, engine, config, views)
    if on_gpu:
        peak = torch.cuda.max_memory_reserved() / 2**20
        figures[f"{name}, MiB reserved, cached features included"] = round(peak)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--weights", help="file or name; default: the bundled weights; random: untrained, 8 stages"
    )
    parser.add_argument("--views", type=int, default=49)
    parser.add_argument("--size", default="1600x1152", help="WIDTHxHEIGHT")
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    device = pick_device(given.device)
    width, height = (int(n) for n in given.size.split("x"))
    model = GBiNet() if given.weights == "random" else GBiNet.from_pretrained(given.weights)
    config = DepthConfig(max_size=max(width, height), device=str(device))
    figures: dict[str, object] = {"size": given.size, "stages": model.config.stages, "views per depth map": 5}
    with tempfile.TemporaryDirectory() as folder:
        scene = make_scene(Path(folder), given.views, width, height)
        for graphs in (0, GRAPHS) if device.type == "cuda" else (0,):
            gc.collect()  # what the engine before leaves, so that its memory does not count again
            if device.type == "cuda":
                torch.cuda.empty_cache()
            figures |= two_passes(scene, GraphedNetwork(prepare(model, device), graphs), config, given.views)
    report("scene", figures, given.out)


if __name__ == "__main__":
    main()
