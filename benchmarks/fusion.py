"""Measures the peak memory of fusion for few and many views, and the time per view, on exact depth maps.

    python benchmarks/fusion.py                         # 10 and 200 views at 640x512 on the CPU
    python benchmarks/fusion.py --views 49 --width 1600 --height 1152 --device cuda

The depth maps show sloping ground. Each number of views runs in its own process, so that peaks are separate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from _common import peak_memory_mib, report

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.formats.image import write_image
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.scene import DepthRange, Scene, SourceView, View


class Ground:
    """Depth maps of a slope seen from a camera that flies along it, computed when they are asked for."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def load(self, index: int) -> DepthMap:
        camera = self.scene.views[index].camera
        K = camera.K
        across = (camera.pixel_grid()[0, :, 0] - K[0, 2]) / K[0, 0]  # [W] slope of the rays in x
        down = (camera.pixel_grid()[:, 0, 1] - K[1, 2]) / K[1, 1]  # [H] in y
        # The ground: z + 0.2 y = 10, the camera flies along x.
        depth = (10 / (1 + 0.2 * down[:, None] + 0 * across)).float()  # [H, W]
        return DepthMap(depth, camera, torch.full_like(depth, 0.9))


def flight(views: int, width: int, height: int, photo: Path) -> Scene:
    focal = float(width)
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
    made = []
    for i in range(views):
        pose = torch.eye(4, dtype=torch.float64)
        pose[:3, 3] = -torch.tensor([0.8 * i, 0.0, 0.0])
        near = sorted(
            (j for j in range(max(0, i - 8), min(views, i + 9)) if j != i), key=lambda j: abs(i - j)
        )
        sources = tuple(SourceView(j, 1 / abs(i - j)) for j in near[:10])
        made.append(View(f"{i:04d}", Camera(K, pose, width, height), photo, DepthRange(5, 15), sources))
    return Scene("flight", "synthetic", photo.parent, tuple(made))


def measure(views: int, width: int, height: int, device: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        photo = write_image(Path(folder) / "photo.jpg", pixels)
        scene = flight(views, width, height, photo)
        torch.zeros(1, device=device)  # starting CUDA is not fusion
        began = time.perf_counter()
        result = fuse(scene, Ground(scene), Path(folder) / "cloud.ply", FusionConfig(), device=device)
        seconds = time.perf_counter() - began
    figures = {
        "points": result.points,
        "seconds": seconds,
        "seconds_per_view": seconds / views,
        "peak_mib": peak_memory_mib(),
    }
    if device.startswith("cuda"):
        figures["peak_gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--views", type=int, nargs="+", default=[10, 200])
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--height", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # one measurement, as JSON
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.views[0], options.width, options.height, options.device)))
        return
    figures: dict[str, object] = {}
    for views in options.views:
        size = ["--width", str(options.width), "--height", str(options.height)]
        command = [
            sys.executable,
            __file__,
            "--inside",
            "--views",
            str(views),
            *size,
            "--device",
            options.device,
        ]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        figures[f"{views} views"] = json.loads(answer.stdout.splitlines()[-1])
    peaks = [f["peak_mib"] for f in figures.values() if isinstance(f, dict)]
    figures["largest_peak_over_smallest"] = max(peaks) / min(peaks)
    report("fusion", figures, options.out)


if __name__ == "__main__":
    main()
