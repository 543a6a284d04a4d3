"""Measures training speed and memory: the three update modes, fast kernels and CUDA graph on and off, and
the cost of rendering samples during training.

    python benchmarks/training.py --out training.json             # 640x512, 5 views, 8 stages, batch 4
    python benchmarks/training.py --model bundled --batch-size 8 --modes shared-encoder
    python benchmarks/training.py --size 64x64 --views 3 --stages 3 --batch-size 2 --repeat 1   # on a CPU

Times are those of whole steps (update, clipping, guard, Adam, averaged weights), launched as one CUDA graph
where the line says so. Peak = torch.cuda.max_memory_allocated over an eager step, including weights and
samples. The memory of a graph is reserved once and is about the same. The last lines train on samples that
are rendered at the same time, as in `gbinet train --preset rendered`. The published code on an H200
(per-stage, 640x512, 5 views, 8 stages, batch 4): 2.9 samples/s, 10,167 MiB; with bf16 2.8 / 6,807.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import get_args

import torch
from _common import peak_memory_mib, report

from gbinet.model.config import PRESETS, GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.render.source import RenderConfig, RenderedSource
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig, UpdateMode, preset
from gbinet.training.distributed import Processes
from gbinet.training.graph import EAGER_STEPS, StepRunner
from gbinet.training.optimise import Optimiser, to_channels_last
from gbinet.training.samples import SourceStream
from gbinet.training.updates import Step


@dataclass(frozen=True)
class Variant:
    """A line of the table."""

    mode: UpdateMode
    kernels: str  # fast, or plain for torch's own operations
    graph: bool  # record the step as a CUDA graph
    encode_twice: bool = True

    def __str__(self) -> str:
        once = "" if self.encode_twice else ", encoded once"
        return f"{self.mode}, {self.kernels} kernels, {'CUDA graph' if self.graph else 'eager'}{once}"


def seconds(run: Callable[[], object], device: torch.device, warmup: int, repeat: int) -> float:
    """Mean seconds per call after warm-up; waits for the GPU at the end."""
    for _ in range(warmup):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeat):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeat


def training_step(
    config: TrainConfig, next_batch: Callable[[], Batch], device: torch.device
) -> tuple[Callable[[], None], StepRunner]:
    """A whole step as the trainer does it, and what runs it."""
    torch.manual_seed(0)
    model = GBiNet(config.network).to(device).train()
    to_channels_last(model)
    optimiser = Optimiser(model, config, Processes())
    step = Step(config, config.network.stages)
    runner = StepRunner(model, optimiser)

    def run() -> None:
        optimiser.schedule(1e-4, 0)
        runner(next_batch(), step)

    return run, runner


@contextmanager
def kernels(choice: str) -> Iterator[None]:
    before = os.environ.get("GBINET_KERNELS")
    os.environ["GBINET_KERNELS"] = choice
    try:
        yield
    finally:
        if before is None:
            del os.environ["GBINET_KERNELS"]
        else:
            os.environ["GBINET_KERNELS"] = before


def measure(
    variant: Variant, config: TrainConfig, batch: Batch, device: torch.device, warmup: int, repeat: int
) -> dict[str, float | str]:
    config = replace(config, update=variant.mode, cuda_graph=variant.graph, encode_twice=variant.encode_twice)
    with kernels(variant.kernels):
        run, runner = training_step(config, lambda: batch, device)
        for _ in range(EAGER_STEPS):  # the graph comes after these
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            run()
        peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else peak_memory_mib()
        duration = seconds(run, device, warmup, repeat)
    note = f" ({runner.failure or 'not recorded'})" if variant.graph and not runner.recorded else ""
    runner.release()
    return {
        "ms": 1000 * duration,
        "samples_per_second": len(batch.images) / duration,
        "peak_mib": peak,
        "note": note,
    }


def measure_rendering(
    config: TrainConfig, source: RenderedSource, device: torch.device, warmup: int, repeat: int
) -> dict[str, float]:
    """Rendering alone, and steps on samples that are rendered meanwhile."""
    size = config.batch_size
    index = count(10_000)
    # Scenes paint their textures once and share them: after some batches, as in most of a run, few are new.
    before = 12 if device.type == "cuda" else 1
    alone = seconds(lambda: source.batch(next(index), size), device, before, repeat)
    batches = SourceStream(source, size, Processes(), device).batches(0)
    run, runner = training_step(config, lambda: next(batches), device)
    together = seconds(run, device, EAGER_STEPS + warmup, repeat)
    batches.close()  # type: ignore[attr-defined]  # a generator: ends its thread
    runner.release()
    return {
        "rendering_alone_ms": 1000 * alone,
        "ms": 1000 * together,
        "samples_per_second": size / together,
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="640x512", help="WIDTHxHEIGHT")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--model", choices=("gbinet", "bundled"), default="gbinet", help="whose network")
    parser.add_argument("--stages", type=int, default=8, help="of the published network")
    parser.add_argument("--first-bins", type=int, default=0, help="of the published network")
    parser.add_argument("--batch-size", type=int, default=4)
    modes = [mode for mode in get_args(UpdateMode) if mode != "refiner"]  # which trains something else
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--assets", type=Path, default=None)
    parser.add_argument("--samples-per-scene", type=int, default=8)
    parser.add_argument("--zoom", type=float, default=preset("rendered").zoom)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def main() -> None:
    given = options()
    device = torch.device(given.device)
    width, height = (int(n) for n in given.size.split("x"))
    render = RenderConfig(
        width,
        height,
        given.views,
        assets=given.assets,
        samples_per_scene=given.samples_per_scene,
        zoom=given.zoom,
    )
    # Without assets: these would lie on the GPU and count in every peak.
    batch = RenderedSource(replace(render, assets=None), device).batch(0, given.batch_size)
    config = TrainConfig(
        precision=given.precision,
        network=GBiNetConfig(stages=given.stages, first_bins=given.first_bins, readout="expectation"),
        batch_size=given.batch_size,
        readout_weight=0.1,
        total_steps=1,
    )
    if given.model == "bundled":
        config = replace(
            config, network=PRESETS["bundled"], recover=True, choice_weight=1.0, readout_weight=0.0
        )
    on_gpu = device.type == "cuda"
    usual = "fast" if on_gpu else "plain"
    variants = [Variant(mode, usual, on_gpu) for mode in given.modes]
    if on_gpu and "shared-encoder" in given.modes:
        variants += [
            Variant("shared-encoder", "fast", True, encode_twice=False),
            Variant("shared-encoder", "fast", False),
            Variant("shared-encoder", "plain", False),
        ]
    figures: dict[str, object] = {}
    rows = []
    for variant in variants:
        result = measure(variant, config, batch, device, given.warmup, given.repeat)
        figures[str(variant)] = result
        note = result.pop("note")
        rows.append((f"{variant}{note}", result["samples_per_second"], result["ms"], result["peak_mib"]))
        print(f"{rows[-1][0]:60s} {rows[-1][1]:6.1f} samples/s", flush=True)
    rendered = measure_rendering(config, RenderedSource(render, device), device, given.warmup, given.repeat)
    figures["shared-encoder, rendering on the fly"] = rendered
    if fastest := figures.get(str(Variant("shared-encoder", usual, on_gpu))):
        rendered["share_of_a_step"] = 1 - fastest["ms"] / rendered["ms"]  # type: ignore[index]
    settings = {k: str(v) for k, v in vars(given).items() if k not in ("out", "modes")}
    report("training", {"settings": settings, **figures}, given.out)
    print(f"\n{'':60s} samples/s       ms  peak MiB")
    for name, rate, duration, peak in rows:
        print(f"{name:60s} {rate:9.1f} {duration:8.1f} {peak:9.0f}")
    print(f"{'shared-encoder, rendering on the fly':60s} "
          f"{rendered['samples_per_second']:9.1f} {rendered['ms']:8.1f}")  # fmt: skip
    share = f", {100 * rendered['share_of_a_step']:.0f} % of a step" if "share_of_a_step" in rendered else ""
    print(f"rendering alone: {rendered['rendering_alone_ms']:.1f} ms per batch{share}")


if __name__ == "__main__":
    main()
