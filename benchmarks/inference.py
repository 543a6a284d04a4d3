"""Measures the time and memory of one depth map, all views encoded: the engine and the plain network.

    python benchmarks/inference.py --device cuda --size 1600x1152            # the paper's protocol
    python benchmarks/inference.py --device cpu --size 640x512 --repeat 3

Peak = torch.cuda.max_memory_allocated, including weights and input images. Published networks on an H200 at
1600x1152, 5 views: GBi-Net 329 ms / 2036 MiB, Effi-MVS+ 90 / 898, IterMVS 99 / 845, PatchmatchNet 106 / 1553.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable

import torch
from _common import report
from torch import Tensor

from gbinet.camera import Camera
from gbinet.inference.graphs import GraphedNetwork
from gbinet.inference.prepare import prepare
from gbinet.inference.resources import measure, views_in_a_row
from gbinet.model.gbinet import GBiNet

PUBLISHED = {
    "GBi-Net": {"ms": 329, "peak_mib": 2036},
    "Effi-MVS+": {"ms": 90, "peak_mib": 898},
    "IterMVS": {"ms": 99, "peak_mib": 845},
    "PatchmatchNet": {"ms": 106, "peak_mib": 1553},
}


def timed(run: Callable[[], object], device: torch.device, repeat: int) -> dict[str, float]:
    milliseconds, peak = measure(run, device, repeat)
    return {"ms": round(milliseconds, 2), "peak_mib": round(peak, 1)}


def replayed(model: GBiNet, inputs: tuple[Tensor, Camera, Tensor], repeat: int) -> dict[str, float]:
    """With CUDA graphs. What a graph works in counts only while it is recorded: the peak contains that, and
    `reserved_mib` is all that torch holds while the graph lives."""
    device = inputs[0].device
    engine = GraphedNetwork(prepare(model, device), 1)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):  # computed, then recorded
        engine(*inputs)
    peak = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.empty_cache()
    figures = timed(lambda: engine(*inputs), device, repeat)
    reserved = torch.cuda.memory_reserved() / 2**20
    return {"ms": figures["ms"], "peak_mib": round(peak, 1), "reserved_mib": round(reserved, 1)}


@torch.inference_mode()
def parts(net: GBiNet, inputs: tuple[Tensor, Camera, Tensor], device: torch.device) -> dict[str, object]:
    """Milliseconds of encoding and of each stage, alone."""
    images, cameras, depth_range = inputs
    figures: dict[str, object] = {"encode": timed(lambda: net.encode(images), device, 5)["ms"]}
    features = net.encode(images)
    state = net.start(features, depth_range)
    for number in range(1, net.config.stages + 1):
        figures[f"stage {number}"] = timed(lambda s=state: net.step(features, cameras, s), device, 5)["ms"]  # type: ignore[misc]
        state = net.step(features, cameras, state).next_state
    return figures


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="1600x1152", help="WIDTHxHEIGHT")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--weights", default=None, help="file or name; without it, random weights")
    parser.add_argument("--profile", action="store_true", help="print the engine's slowest kernels")
    parser.add_argument("--out", default=None, help="write the JSON here too")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    width, height = (int(v) for v in arguments.size.split("x"))
    model = (GBiNet.from_pretrained(arguments.weights) if arguments.weights else GBiNet()).eval()
    engine = prepare(model, device)
    inputs = views_in_a_row(arguments.views, width, height, device)
    figures: dict[str, object] = {"size": arguments.size, "views": arguments.views}
    figures["engine"] = timed(lambda: engine(*inputs), device, arguments.repeat)
    if device.type == "cuda":
        figures["engine, CUDA graphs"] = replayed(model, inputs, arguments.repeat)
    figures["engine parts"] = parts(engine, inputs, device)
    model = model.to(device)
    os.environ["GBINET_KERNELS"] = "plain"
    figures["plain float32"] = timed(lambda: model(*inputs), device, max(3, arguments.repeat // 3))
    os.environ["GBINET_KERNELS"] = "fast"
    if device.type == "cuda":
        figures["published, H200"] = PUBLISHED
    report("inference", figures, arguments.out)
    if arguments.profile:
        profile(lambda: engine(*inputs))


def profile(run: Callable[[], object]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch_profile(activities=activities) as trace:
        run()
    key = "cuda_time_total" if torch.cuda.is_available() else "cpu_time_total"
    print(trace.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=60))


if __name__ == "__main__":
    main()
