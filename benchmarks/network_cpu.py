"""The network on a CPU: time against the sum of its convolutions timed alone, what else takes time, memory.

    python benchmarks/network_cpu.py [--network plain|engine] [--repeats 3] [--out FILE]

Every convolution (deformable ones as a whole) is recorded in one run, then timed alone on inputs of the same
shape and layout, at its best of a few repeats, as the whole run is: once as the network runs it, and once as
torch runs it by itself (see model/layers.py). Times are those of the process on all its threads, so that
other work on the machine disturbs little; wall-clock seconds of the whole run stand beside them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from _common import peak_memory_mib, report
from torch import Tensor, nn

from gbinet.camera import Camera
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet
from gbinet.model.layers import Block, Conv3d, DeformConv2d, DoublingConv3d

CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d, DeformConv2d)


@dataclass(frozen=True)
class Call:
    """One convolution as it was called."""

    module: nn.Module
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # of the input in memory


def inputs(views: int, height: int, width: int) -> tuple[Tensor, Camera, Tensor]:
    """Images [1, V, 3, H, W], cameras [1, V] in a row that look ahead, and a range."""
    torch.manual_seed(0)
    K = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1.0]])
    cam_from_world = torch.eye(4).repeat(views, 1, 1)
    cam_from_world[:, 0, 3] = -0.1 * torch.arange(views)
    cameras = Camera(K.repeat(views, 1, 1), cam_from_world, width, height)
    return torch.rand(1, views, 3, height, width), cameras[None], torch.tensor([[2.0, 10.0]])


def outermost_convolutions(model: nn.Module) -> list[nn.Module]:
    """All convolutions, without those inside another (the offsets of a deformable one) or a folded block."""
    kinds = (*CONVOLUTIONS, Block)
    found = [(name, m) for name, m in model.named_modules() if isinstance(m, kinds)]
    found = [(name, m) for name, m in found if not isinstance(m, Block) or m.folded]
    whole = [name for name, m in found if isinstance(m, DeformConv2d | Block)]
    return [m for name, m in found if not any(name.startswith(f"{w}.") for w in whole)]


def record(model: nn.Module, run: Callable[[], object]) -> list[Call]:
    calls: list[Call] = []

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        calls.append(Call(module, tuple(args[0].shape), args[0].stride()))

    hooks = [m.register_forward_pre_hook(note) for m in outermost_convolutions(model)]
    run()
    for hook in hooks:
        hook.remove()
    return calls


def best(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of the process and of the wall clock, each at its best."""
    times = []
    for _ in range(repeats):
        wall, process = time.perf_counter(), time.process_time()
        run()
        times.append((time.process_time() - process, time.perf_counter() - wall))
    return min(t[0] for t in times), min(t[1] for t in times)


def time_alone(
    calls: list[Call], repeats: int, forward: Callable[[nn.Module, Tensor], object]
) -> dict[str, float]:
    """Seconds per kind of convolution. Calls that are alike are timed once and counted."""
    alike: dict[Call, int] = {}
    for call in calls:
        alike[call] = alike.get(call, 0) + 1
    seconds: dict[str, float] = {}
    for call, count in alike.items():
        data = (
            torch.rand(call.shape).as_strided(call.shape, call.stride)
            if dense(call)
            else torch.rand(call.shape)
        )

        def run(module: nn.Module = call.module, data: Tensor = data) -> object:
            return forward(module, data)

        run()  # warm-up
        kind = type(call.module).__name__
        seconds[kind] = seconds.get(kind, 0.0) + count * best(run, repeats)[0]
    return seconds


def dense(call: Call) -> bool:
    """Whether the strides fill a tensor of this shape without gaps, in any order of its axes."""
    expected = 1
    for stride, size in sorted((st, si) for st, si in zip(call.stride, call.shape, strict=True) if si > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def as_torch_would(module: nn.Module, data: Tensor) -> object:
    if isinstance(module, Block):
        return as_torch_would(module.conv, data)
    if isinstance(module, Conv3d):
        return nn.Conv3d.forward(module, data)
    if isinstance(module, DoublingConv3d):
        return nn.ConvTranspose3d.forward(module, data)
    return module(data)


def other_operations(run: Callable[[], object]) -> dict[str, float]:
    """Seconds per operation that is not a convolution, from torch's profiler; the ten largest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    rows = {e.key: e.self_cpu_time_total / 1e6 for e in profile.key_averages() if "conv" not in e.key}
    return {k: round(v, 3) for k, v in sorted(rows.items(), key=lambda item: -item[1])[:10]}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=["plain", "engine"], default="engine")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--height", type=int, default=512)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    model = GBiNet("gbinet").eval()
    if given.network == "engine":
        model = prepare(model, "cpu")
    images, cameras, ends = inputs(given.views, given.height, given.width)
    before = peak_memory_mib()

    def run() -> object:
        return model(images, cameras, ends)

    calls = record(model, run)
    peak = peak_memory_mib()
    process, wall = best(run, given.repeats)
    alone = time_alone(calls, given.repeats, lambda module, data: module(data))
    by_torch = time_alone(calls, 1, as_torch_would)
    figures = {
        "setting": f"{given.network}, {given.views} views, {given.height}x{given.width}, all stages, float32",
        "seconds_process": round(process, 2),
        "seconds_wall": round(wall, 2),
        "convolutions": len(calls),
        "seconds_convolutions_alone": {k: round(v, 2) for k, v in alone.items()},
        "ratio_to_its_convolutions": round(process / sum(alone.values()), 3),
        "ratio_to_torchs_convolutions": round(process / sum(by_torch.values()), 3),
        "seconds_of_other_operations": other_operations(run),
        "peak_memory_mib": round(peak),
        "peak_memory_above_start_mib": round(peak - before),
    }
    report("network_cpu", figures, given.out)


if __name__ == "__main__":
    main()
