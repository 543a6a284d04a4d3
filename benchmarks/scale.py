"""Measures the cost of many photos and many workers: `python benchmarks/scale.py PART [options]`.

large     load, rank and plan a scene of artificial cameras (--views 10000), by geometry and by tracks
schedule  schedule empty tasks on a local Ray (--units 10000), and print the cost of each
workers   process the same --photos with one worker and with two, one core each, in turns (--repeat)
view      seconds and bytes of one view in depth and in fusion, on one core

Photos are noise, seen from a drone over a plane. Their content changes neither the network's time nor bytes.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import peak_memory_mib, report
from PIL import Image
from scene_loading import make_colmap, make_mvsnet

from gbinet.camera import Camera
from gbinet.cluster import depth as cluster_depth
from gbinet.cluster.depth import DepthJob, estimate_depths_on
from gbinet.cluster.pool import Pool, in_groups
from gbinet.cluster.session import Cluster, ClusterConfig
from gbinet.cluster.worker import JobMaker
from gbinet.depthmap import DepthMap
from gbinet.formats.depth_files import write_depth_map
from gbinet.fusion.candidates import CandidateMaker, PointChooser
from gbinet.fusion.comparing import Comparer
from gbinet.fusion.fuse import FusionConfig
from gbinet.inference.predictor import DepthConfig, depth_order, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.pointcloud import PointCloud
from gbinet.scene import DepthRange, Scene, View
from gbinet.scenes import load_scene
from gbinet.scenes.complete import completed
from gbinet.scenes.depth_folder import DepthFolder

HEIGHT = 10.0  # of the drone


def drone_scene(folder: Path, count: int, width: int, height: int) -> Scene:
    """Photos in rows of six, 80 % overlap; the plane lies HEIGHT below all of them."""
    folder.mkdir(parents=True)
    K = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], dtype=torch.float64)
    noise = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    photo = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    photo.save(folder / "000000.jpg", quality=90)
    views = []
    for index in range(count):
        path = folder / f"{index:06d}.jpg"
        if index:
            shutil.copyfile(folder / "000000.jpg", path)
        pose = torch.eye(4, dtype=torch.float64)
        pose[:2, 3] = torch.tensor([-2.0 * (index % 6), -1.5 * (index // 6)])
        views.append(View(path.stem, Camera(K, pose, width, height), path, DepthRange(5, 20)))
    return completed(Scene("drone", "made", folder, tuple(views)))


# ---- large -------------------------------------------------------------------------------------------------


def plan(folder: Path) -> dict[str, float]:
    """Load and rank, then the order and the groups of both steps; in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    scene = load_scene(folder)
    loaded = time.perf_counter() - wall
    groups = in_groups(depth_order(scene), 32)
    with Comparer(scene, DepthFolder(scene, folder / "depth"), FusionConfig(), "cpu") as comparer:
        groups += in_groups(comparer.order, 16)
    return {
        "views": len(scene.views),
        "groups": len(groups),
        "load_and_rank_wall_s": round(loaded, 2),
        "wall_s": round(time.perf_counter() - wall, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_mib": round(peak_memory_mib()),
    }


def large(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    make_mvsnet(folder / "geometry", options.views)
    (folder / "geometry" / "pair.txt").unlink()
    make_colmap(folder / "tracks", folder / "geometry" / "images", options.views, 100 * options.views, 6)
    code = "import sys, json, scale, pathlib; print(json.dumps(scale.plan(pathlib.Path(sys.argv[1]))))"
    figures: dict[str, object] = {}
    for name in ("geometry", "tracks"):  # each in a process of its own: the peak of a process never falls
        command = [sys.executable, "-c", code, str(folder / name)]
        places = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True
        )
        figures[f"ranked_by_{name}"] = done.stdout.strip() or done.stderr
    return figures


# ---- Ray ---------------------------------------------------------------------------------------------------


class Nothing:
    """A job that costs nothing."""

    def begin(self, item: int, following: Sequence[int], lost: dict[int, str]) -> Callable[[], Any]:
        return lambda: (None, None)


def local(workers: int) -> Cluster:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    return Cluster(ray, ClusterConfig(cores=1))


def schedule(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    cluster = local(options.workers)
    try:
        make = cluster.ray.put(JobMaker(Nothing, ()))
        with Pool(cluster, make, on_gpu=False) as pool:
            list(pool.results([[-1]]))  # workers are there
            wall, cpu = time.perf_counter(), time.process_time()
            done = sum(1 for _ in pool.results(in_groups(range(options.units), 32)))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        cluster.ray.shutdown()
    assert done == options.units
    return {
        "units": done,
        "workers": options.workers,
        "ms_each": round(1e3 * wall / done, 3),
        "driver_cpu_ms_each": round(1e3 * cpu / done, 3),
        "load_average": os.getloadavg(),
    }


class Timed(DepthJob):
    """Says how much of a core its process has had so far: other work on the machine does not count."""

    def begin(self, item: int, following: Sequence[int], lost: dict[int, str]) -> Callable[[], Any]:
        finish = super().begin(item, following, lost)

        def timed() -> Any:
            news, large = finish()
            news.run.warnings.append(f"{os.getpid()} {time.process_time()}")
            return news, large

        return timed


def workers(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    scene = drone_scene(folder / "photos", options.photos, *options.size)
    model, config = GBiNet.from_pretrained(), DepthConfig(max_size=max(options.size), device="cpu")
    runs: dict[str, list[dict[str, Any]]] = {"1": [], "2": []}
    setattr(cluster_depth, "DepthJob", Timed)  # noqa: B010
    for number in range(options.repeat):
        for count in (1, 2):
            load = os.getloadavg()[0]
            cluster = local(count)
            try:
                out = folder / f"{count}-{number}"
                run = estimate_depths_on(cluster, scene, model, out, config)
            finally:
                cluster.ray.shutdown()
            cores: dict[str, float] = {}  # process -> seconds
            for process, seconds in (text.split() for text in run.warnings):
                cores[process] = max(float(seconds), cores.get(process, 0.0))
            figures = {
                "wall_s": round(run.seconds, 1),
                "cpu_s_of_each_worker": sorted(round(s, 1) for s in cores.values()),
                "encoded": run.encoded,
                "load_before": round(load, 1),
            }
            runs[str(count)].append(figures)
    walls = [min(r["wall_s"] for r in runs[key]) for key in ("1", "2")]
    cpus = [min(max(r["cpu_s_of_each_worker"]) for r in runs[key]) for key in ("1", "2")]
    ratios = {"ratio_wall": round(walls[1] / walls[0], 3), "ratio_cpu": round(cpus[1] / cpus[0], 3)}
    return {"photos": options.photos, "size": options.size, "runs": runs, **ratios}


# ---- one view ----------------------------------------------------------------------------------------------


def view(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    torch.set_num_threads(1)
    scene = drone_scene(folder / "photos", options.photos, *options.size)
    figures: dict[str, object] = {"photos": options.photos, "size": options.size}
    if not options.no_network:
        cpu = time.process_time()
        some = replace(
            scene, views=tuple(replace(v, sources=()) if i > 3 else v for i, v in enumerate(scene.views))
        )
        estimate_depths(
            some, GBiNet.from_pretrained(), folder / "some", DepthConfig(max_size=max(options.size))
        )
        figures["depth_cpu_s_of_4_views"] = round(time.process_time() - cpu, 2)
    maps = DepthFolder(scene, folder / "depth")
    for index, one in enumerate(scene.views):
        camera = one.camera
        depth = torch.full((camera.height, camera.width), HEIGHT)
        write_depth_map(
            maps.path(index), DepthMap(depth, camera, torch.ones_like(depth)), one.image_path.name
        )
    config = FusionConfig()
    compare, choose, travel, points, candidates = 0.0, 0.0, 0, 0, 0
    chooser = PointChooser(config)
    with Comparer(scene, maps, config, "cpu") as comparer:
        maker = CandidateMaker(comparer)
        for index in comparer.order:
            begun = time.process_time()
            made = maker.make(index)
            assert made is not None
            sent = pickle.dumps(made, protocol=5)
            middle = time.process_time()
            fused = chooser.choose(made)
            compare, choose = compare + middle - begun, choose + time.process_time() - middle
            travel, points = travel + len(sent), points + len(fused.cloud)
            candidates += len(made.pixels)
    count = len(scene.views)
    row = sum(t.element_size() * (t.numel() // max(1, len(t))) for f in fields(PointCloud)
              if (t := getattr(fused.cloud, f.name)) is not None)  # fmt: skip
    return figures | {
        "photo_bytes": scene.views[0].image_path.stat().st_size,
        "depth_map_bytes": maps.path(0).stat().st_size,
        "candidates": candidates // count,
        "candidate_bytes": travel // count,
        "points": points // count,
        "cloud_bytes": points * row // count,
        "compare_cpu_s": round(compare / count, 3),
        "choose_cpu_s": round(choose / count, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=["large", "schedule", "workers", "view"])
    parser.add_argument("--views", type=int, default=10_000)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--photos", type=int, default=24)
    parser.add_argument("--size", type=lambda text: [int(n) for n in text.split("x")], default=[640, 480])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-network", action="store_true", help="part view: fusion only")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    part: Callable[[argparse.Namespace, Path], dict[str, object]] = globals()[options.part]
    with tempfile.TemporaryDirectory() as place:
        report(f"scale {options.part}", part(options, Path(place)), options.out)


if __name__ == "__main__":
    main()
