"""Measures the time and memory of a DTU evaluation, on a rendered scan of realistic size in DTU's own files.

python benchmarks/evaluation.py                               # 3 million points against 300,000
python benchmarks/evaluation.py --points 30000000 --reference 3000000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from _common import peak_memory_mib, report
from numpy.typing import NDArray

from gbinet.evaluation.cloud import load_points
from gbinet.evaluation.dtu import evaluate_scan, load_reference
from gbinet.formats.ply import PlyWriter
from gbinet.pointcloud import PointCloud

DENSITY = 250  # points per mm^2 of a fused cloud of 49 views: 30 million on 400 x 300 mm
NOISE = 0.15  # mm, standard deviation of the cloud
CHUNK = 1 << 20


def surface(count: int, width: float, noise: float, seed: int) -> Iterator[NDArray[np.float32]]:
    """Random points of a wavy surface 4 : 3, in pieces."""
    rng = np.random.default_rng(seed)
    for start in range(0, count, CHUNK):
        n = min(CHUNK, count - start)
        x, y = rng.uniform(0, width, n), rng.uniform(0, 0.75 * width, n)
        z = 600 + 12 * np.sin(x / 25) * np.cos(y / 30) + rng.normal(0, noise, n)
        yield np.stack([x, y, z], axis=1).astype(np.float32)


def write_scan(folder: Path, points: int, reference: int) -> Path:
    from scipy.io import savemat

    width = (points / DENSITY * 4 / 3) ** 0.5
    box = np.array([[0.0, 0, 560], [width, 0.75 * width, 640]])
    (folder / "ObsMask").mkdir(parents=True)
    size = tuple(np.ceil((box[1] - box[0]) / 1.0).astype(int) + 1)
    mask = {"ObsMask": np.ones(size, dtype=np.uint8), "BB": box, "Res": 1.0}
    savemat(folder / "ObsMask" / "ObsMask1_10.mat", mask, do_compression=True)
    savemat(folder / "ObsMask" / "Plane1.mat", {"P": np.array([[0.0, 0, 1, 0]])})
    for path, count, noise in (
        (folder / "Points" / "stl" / "stl001_total.ply", reference, 0.0),
        (folder / "cloud.ply", points, NOISE),
    ):
        with PlyWriter(path) as writer:
            for piece in surface(count, width, noise, seed=count):
                writer.append(PointCloud(torch.from_numpy(piece)))
    return folder / "cloud.ply"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=3_000_000)
    parser.add_argument("--reference", type=int, default=300_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        cloud = write_scan(Path(name), arguments.points, arguments.reference)
        before = peak_memory_mib()
        start, cpu = time.perf_counter(), time.process_time()
        truth = load_reference(name, 1)
        points = load_points(cloud)
        read = time.perf_counter()
        ends: dict[str, float] = {}

        def progress(done: int, total: int, what: str) -> None:
            ends[what] = time.perf_counter()

        score, _ = evaluate_scan(points, truth, device=arguments.device, progress=progress)
        end, cpu = time.perf_counter(), time.process_time() - cpu
    steps = {"reading": read - start}
    for what, at in ends.items():
        steps[what] = at - start - sum(steps.values())
    figures = {
        "points": arguments.points,
        "reference points": arguments.reference,
        "device": arguments.device,
        "seconds": round(end - start, 1),
        "CPU seconds, all threads": round(cpu, 1),
        "seconds by step": {what: round(seconds, 1) for what, seconds in steps.items()},
        "peak resident memory, MiB": round(peak_memory_mib()),
        "peak before the evaluation (making the files), MiB": round(before),
        "score": asdict(score),
    }
    if arguments.device.startswith("cuda"):
        figures["peak memory on the GPU, MiB"] = round(torch.cuda.max_memory_allocated() / 2**20)
    report("evaluation", figures, arguments.out)


if __name__ == "__main__":
    main()
