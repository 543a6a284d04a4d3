"""Measures how fast samples are rendered: 5 views with the depth of the reference view.

python benchmarks/rendering.py                                    # CPU, 320x256
python benchmarks/rendering.py --device cuda --assets FOLDER      # GPU, 640x512
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from _common import peak_memory_mib, report

from gbinet.render import RenderConfig, RenderedSource, Sample


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--assets", type=Path)
    parser.add_argument("--size", help="WIDTHxHEIGHT; 640x512 on a GPU, 320x256 on a CPU")
    parser.add_argument("--samples", type=int, help="how many are timed; 256 on a GPU, 4 on a CPU")
    parser.add_argument(
        "--compare", action="store_true", help="check the fast kernels against the plain code"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    on_gpu = torch.device(arguments.device).type == "cuda"
    width, height = (int(n) for n in (arguments.size or ("640x512" if on_gpu else "320x256")).split("x"))
    config = RenderConfig(width=width, height=height, assets=arguments.assets, asset_share=1.0)
    figures: dict[str, object] = {"width": width, "height": height, "views": config.views}
    start = time.perf_counter()
    source = RenderedSource(config, arguments.device)
    figures["open_library_s"] = round(time.perf_counter() - start, 2)
    if arguments.compare:
        figures["compare"] = compare(source)
    count = arguments.samples or (256 if on_gpu else 4)
    figures |= measure(source, count, warm_up=16 if on_gpu else 1)
    if on_gpu:
        figures["peak_gpu_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    figures["peak_memory_mib"] = round(peak_memory_mib())
    report("rendering", figures, arguments.out)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(source: RenderedSource, count: int, warm_up: int) -> dict[str, object]:
    """Samples per second as the trainer sees them, and the parts of their cost."""
    for index in range(warm_up):
        source.sample(index)
    _wait(source.device)
    start = time.perf_counter()
    for index in range(warm_up, warm_up + count):
        source.sample(index)
    _wait(source.device)
    stream = time.perf_counter() - start
    start = time.perf_counter()
    scenes = [source.scene(1000 + number) for number in range(max(1, min(8, count // 4)))]
    _wait(source.device)
    build = (time.perf_counter() - start) / len(scenes)
    from gbinet.render import render_sample

    start = time.perf_counter()
    for index in range(count):
        render_sample(scenes[index % len(scenes)], (1, index), source.config)
    launched = time.perf_counter() - start
    _wait(source.device)
    only = time.perf_counter() - start
    triangles = [len(scene.faces) for scene in scenes]
    return {
        "samples": count,
        "samples_per_s": round(count / stream, 2),
        "s_per_sample": round(stream / count, 4),
        "scene_ms": round(1e3 * build, 1),
        "render_ms_per_sample": round(1e3 * only / count, 2),
        "host_ms_per_sample": round(1e3 * launched / count, 2),
        "triangles": triangles,
    }


def compare(source: RenderedSource) -> dict[str, object]:
    """The worst of some samples: fast kernels against plain code on the same device, and the device against
    the CPU (fewer samples: the CPU takes seconds for one)."""
    os.environ["GBINET_KERNELS"] = "plain"
    plain = RenderedSource(source.config, source.device)
    expected = [plain.sample(index) for index in range(6)]
    cpu = RenderedSource(source.config, "cpu")
    on_cpu = [cpu.sample(index) for index in range(2)] if source.device.type != "cpu" else []
    del os.environ["GBINET_KERNELS"]
    found = [source.sample(index) for index in range(6)]
    return {
        "kernels against plain code": _worst(found, expected),
        "device against CPU": _worst(found, on_cpu),
    }


def _worst(found: list[Sample], expected: list[Sample]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for one, other in zip(found, expected, strict=False):
        depth, images = other.depth.to(one.depth.device), other.images.to(one.images.device)
        known = (depth > 0) & (one.depth > 0)
        gap = ((one.depth - depth).abs() / depth.clamp_min(1e-9))[known]
        difference = (one.images - images).abs()
        values = {
            "depth_relative": float(gap.kthvalue(int(0.999 * (len(gap) - 1)) + 1).values),
            "image_mean": float(difference.mean()),
            "image_share_above_2_percent": float((difference > 0.02).float().mean()),
        }
        worst = {key: max(value, worst.get(key, 0.0)) for key, value in values.items()}
    return worst


if __name__ == "__main__":
    main()
