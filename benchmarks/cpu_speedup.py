"""Compares the optimised and the unoptimised network on a CPU, in alternation within one run.

    python benchmarks/cpu_speedup.py [--weights FILE] [--threads 1 2] [--repeats 3] [--out FILE]

Unoptimised is a straightforward implementation in torch: batch norms as separate layers, nn.Conv3d and
nn.ConvTranspose3d with torch's default algorithms, torch's default memory layout and grid_sample, the cost
volume of a stage in one piece, all views encoded together, float32. The optimised network runs in float32 and
in the default precision of this processor. Times are the best of the repeats: wall-clock time, and CPU time
of the process with all its threads, which is more reliable on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from _common import report
from torch import Tensor

from gbinet.cli.allocator import keep_freed_memory
from gbinet.inference.device import pick_precision
from gbinet.inference.prepare import prepare
from gbinet.inference.resources import views_in_a_row
from gbinet.model.gbinet import GBiNet
from gbinet.model.regulariser import Regulariser
from gbinet.ops import conv, cost_volume


@contextmanager
def unoptimised() -> Iterator[None]:
    """Inside, GBiNet computes as a straightforward port would."""
    before = conv.onednn_suits, cost_volume.BAND_PIXELS, Regulariser.first_layer

    def straightforward(net: Regulariser, volume: Tensor, reference: Tensor | None = None) -> Tensor:
        entered: Tensor = net.entry(volume.contiguous(), skip=net._context(reference, (0, 0, 0, 0)))
        return entered

    conv.onednn_suits = lambda volume, weight: False
    cost_volume.BAND_PIXELS = 1 << 62
    Regulariser.first_layer = straightforward  # type: ignore[method-assign, assignment]
    os.environ["GBINET_KERNELS"] = "plain"
    try:
        yield
    finally:
        conv.onednn_suits, cost_volume.BAND_PIXELS, Regulariser.first_layer = before  # type: ignore[method-assign]
        del os.environ["GBINET_KERNELS"]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", help="file or name; default: the bundled weights")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", default="640x512", help="WIDTHxHEIGHT, multiples of 64")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    width, height = (int(n) for n in given.size.split("x"))
    cpu = torch.device("cpu")
    keep_freed_memory()  # as the command line does
    model = GBiNet.from_pretrained(given.weights).eval()
    networks = {"unoptimised": model, "float32": prepare(model, cpu)}
    default = pick_precision("auto", cpu)
    if default != torch.float32:
        networks[str(default).removeprefix("torch.")] = prepare(model, cpu, default)
    inputs = views_in_a_row(given.views, width, height, cpu)

    def run(name: str) -> tuple[float, float]:
        wall, process = time.perf_counter(), time.process_time()
        with unoptimised() if name == "unoptimised" else nullcontext():
            networks[name](*inputs)
        return time.perf_counter() - wall, time.process_time() - process

    figures: dict[str, object] = {"size": given.size, "views": given.views, "stages": model.config.stages}
    for threads in given.threads:
        torch.set_num_threads(threads)
        times = [{name: run(name) for name in networks} for _ in range(given.repeats)]
        row: dict[str, float] = {}
        for name in networks:
            wall, process = (min(t[name][i] for t in times) for i in (0, 1))
            row |= {f"{name}, wall s": round(wall, 2), f"{name}, process s": round(process, 2)}
        figures[f"{threads} threads"] = row
    report("cpu speedup", figures, given.out)


if __name__ == "__main__":
    main()
