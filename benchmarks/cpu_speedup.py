"""The engine against the unoptimised network on a CPU, side by side in one run.

    python benchmarks/cpu_speedup.py [--threads 1 2] [--repeats 3] [--out FILE]

Unoptimised is what a straightforward port to torch does: batch norms as layers of their own, nn.Conv3d and
nn.ConvTranspose3d with the algorithms that torch picks, tensors in torch's usual layout, the cost volume of a
stage made in one piece, all views encoded together. Both have the same random weights, float32, eight stages.
The two take turns; seconds are the best of the repeats, of the wall clock and of the process (all its
threads: what counts where other work disturbs), and their depth maps are compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from _common import report
from torch import Tensor

from gbinet.inference.prepare import prepare
from gbinet.inference.resources import views_in_a_row
from gbinet.model.gbinet import GBiNet
from gbinet.model.regulariser import Regulariser
from gbinet.ops import conv, cost_volume


@contextmanager
def unoptimised() -> Iterator[None]:
    """Inside, GBiNet computes as a straightforward port would."""
    before = conv.onednn_suits, cost_volume.BAND_PIXELS, Regulariser.enter

    def straightforward(net: Regulariser, volume: Tensor, reference: Tensor | None = None) -> Tensor:
        entered: Tensor = net.entry(volume.contiguous())
        return entered

    conv.onednn_suits = lambda volume, weight: False
    cost_volume.BAND_PIXELS = 1 << 62
    Regulariser.enter = straightforward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        conv.onednn_suits, cost_volume.BAND_PIXELS, Regulariser.enter = before  # type: ignore[method-assign]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", default="640x512", help="WIDTHxHEIGHT, multiples of 64")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    width, height = (int(n) for n in given.size.split("x"))
    torch.manual_seed(0)
    model = GBiNet("gbinet").eval()
    engine = prepare(model, "cpu")
    inputs = views_in_a_row(given.views, width, height, torch.device("cpu"))

    def run(net: GBiNet) -> tuple[tuple[float, float], Tensor]:
        wall, process = time.perf_counter(), time.process_time()
        depth: Tensor = net(*inputs).depth
        return (time.perf_counter() - wall, time.process_time() - process), depth

    figures: dict[str, object] = {"size": given.size, "views": given.views, "stages": model.config.stages}
    for threads in given.threads:
        torch.set_num_threads(threads)
        fast, slow = [], []
        for _ in range(given.repeats):
            fast.append(run(engine))
            with unoptimised():
                slow.append(run(model))
        same = (fast[0][1] == slow[0][1]).float().mean()
        row: dict[str, float] = {"same depth": round(float(same), 4)}
        for i, clock in enumerate(("wall", "process")):
            quick, long = min(f[0][i] for f in fast), min(s[0][i] for s in slow)
            row |= {f"engine, {clock} s": round(quick, 2), f"unoptimised, {clock} s": round(long, 2)}
            row[f"times faster, {clock}"] = round(long / quick, 2)
        figures[f"{threads} threads"] = row
    report("cpu speedup", figures, given.out)


if __name__ == "__main__":
    main()
