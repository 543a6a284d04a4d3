"""Training speed and memory of the three update modes side by side, and what rendering the samples costs.

    python benchmarks/training.py --out training.json             # 512x640, 5 views, 8 stages, batch 4
    python benchmarks/training.py --size 64x64 --views 3 --stages 3 --batch-size 2 --repeat 1   # on a CPU

Peak = torch.cuda.max_memory_allocated over a whole step, weights and samples included. The published code on
an H200 (per-stage, 512x640, 5 views, 8 stages, batch 4): 2.9 samples/s, 10,167 MiB; with bf16 2.8 / 6,807.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from typing import get_args

import torch
from _common import peak_memory_mib, report

from gbinet.data.batch import Batch
from gbinet.model.gbinet import GBiNet
from gbinet.render.source import RenderConfig, RenderedSource
from gbinet.training.config import TrainConfig, UpdateMode
from gbinet.training.distributed import Processes
from gbinet.training.graph import StepRunner
from gbinet.training.optimise import Optimiser, to_channels_last
from gbinet.training.updates import Step


def seconds(run: Callable[[], object], device: torch.device, warmup: int, repeat: int) -> float:
    """Mean seconds per call after warm-up; CUDA events, so the host's clock does not count."""
    for _ in range(warmup):
        run()
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(repeat):
            run()
        return (time.perf_counter() - begin) / repeat
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(repeat):
        run()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1000 / repeat


def training_step(config: TrainConfig, batch: Batch, device: torch.device) -> Callable[[], None]:
    """A whole step as the trainer does it: update, clipping, guard, Adam, averaged weights."""
    torch.manual_seed(0)
    model = GBiNet(config.network).to(device).train()
    to_channels_last(model)
    optimiser = Optimiser(model, config, Processes())
    step = Step(config, config.stages)
    runner = StepRunner(model, optimiser)

    def run() -> None:
        optimiser.schedule(1e-4, 0)
        runner(batch, step)

    return run


def peak_mib(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else peak_memory_mib()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="640x512", help="WIDTHxHEIGHT")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--first-bins", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--modes", nargs="+", choices=get_args(UpdateMode), default=get_args(UpdateMode))
    parser.add_argument("--precision", nargs="+", choices=("float32", "bfloat16"), default=["bfloat16"])
    parser.add_argument("--assets", type=Path, default=None)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def main() -> None:
    given = options()
    device = torch.device(given.device)
    width, height = (int(n) for n in given.size.split("x"))
    render = RenderConfig(width=width, height=height, views=given.views, assets=given.assets)
    source = RenderedSource(render, device)
    batch = source.batch(0, given.batch_size)
    figures: dict[str, object] = {}
    fastest = float("inf")
    for precision, mode in product(given.precision, given.modes):
        config = TrainConfig(
            update=mode,
            precision=precision,
            stages=given.stages,
            first_bins=given.first_bins,
            batch_size=given.batch_size,
            readout_weight=0.1,
            total_steps=1,
        )
        duration = seconds(training_step(config, batch, device), device, given.warmup, given.repeat)
        fastest = min(fastest, duration)
        figures[f"{mode} {precision}"] = {
            "ms": 1000 * duration,
            "samples_per_second": given.batch_size / duration,
            "peak_mib": peak_mib(device),
        }
        if device.type == "cuda":
            torch.cuda.empty_cache()
    index = count(1)
    rendering = seconds(
        lambda: source.batch(next(index), given.batch_size), device, given.warmup, given.repeat
    )
    figures["rendering"] = {
        "ms": 1000 * rendering,
        "share_of_fastest_step": rendering / (rendering + fastest),
    }
    settings = {k: str(v) for k, v in vars(given).items() if k not in ("out", "modes", "precision")}
    report("training", {"settings": settings, **figures}, given.out)


if __name__ == "__main__":
    main()
