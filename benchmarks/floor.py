"""Computes a lower bound for inference: the bytes to move and the products to compute, part by part.

    python benchmarks/floor.py --size 1600x1152 --views 5 --bandwidth 4.25

Every layer reads its input and writes its output once, in half precision. Batch norm, ReLU and skip
connections add nothing. The cost volume reads the features of all views once and writes the fused volume.
Fusing layers with each other could need even less. Only shapes are computed, so no GPU is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from _common import report
from torch import Tensor, nn

from gbinet.model.gbinet import GBiNet
from gbinet.model.layers import DeformConv2d

HALF = 2  # bytes


@dataclass
class Work:
    """What a part must do."""

    bytes_moved: float = 0.0
    products: float = 0.0

    def add(self, inputs: Tensor, output: Tensor, per_output: int, weights: int) -> None:
        self.bytes_moved += HALF * (inputs.numel() + output.numel() + weights)
        self.products += output.numel() * per_output

    def figures(self, bandwidth: float) -> dict[str, float]:
        megabytes = self.bytes_moved / 2**20
        milliseconds = self.bytes_moved / (bandwidth * 1e9)
        return {
            "MiB": round(megabytes, 1),
            "GMAC": round(self.products / 1e9, 2),
            "floor ms": round(milliseconds, 3),
        }


@contextmanager
def counted(net: nn.Module) -> Iterator[Work]:
    """Count what the convolutions inside do while the block runs."""
    work = Work()

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        transposed = isinstance(module, nn.ConvTranspose3d)
        taps = weight[0, 0].numel()
        per_output = weight.shape[0] * taps / 4 if transposed else weight.shape[1] * taps
        work.add(inputs[0], output, int(per_output), weight.numel())

    kinds = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d, DeformConv2d)
    handles = [m.register_forward_hook(hook) for m in net.modules() if isinstance(m, kinds)]
    yield work
    for handle in handles:
        handle.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", default="1600x1152", help="WIDTHxHEIGHT")
    parser.add_argument("--views", type=int, default=5)
    parser.add_argument(
        "--bandwidth", type=float, default=4.25, help="TB/s read + written; H200: 4.25 measured"
    )
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    width, height = (int(n) for n in given.size.split("x"))
    with torch.device("meta"):
        model = GBiNet().eval()
        figures: dict[str, object] = {}
        total = Work()
        with counted(model.encoder) as work:
            model.encoder(torch.empty(given.views, 3, height, width))
        total.bytes_moved += work.bytes_moved
        total.products += work.products
        figures["encoder, all views"] = work.figures(given.bandwidth)
        for stage in range(1, model.config.stages + 1):
            scale = model.config.scale_index(stage)
            h, w = (n // model.config.scales[scale] for n in (height, width))
            bins, groups = model.config.bins, model.config.groups[scale]
            features = given.views * model.encoder.channels[scale] * h * w
            with counted(model.regularisers[scale]) as work:
                model.regularisers[scale](torch.empty(1, groups, bins, h, w))
            work.bytes_moved += HALF * (features + groups * bins * h * w)
            work.products += (given.views - 1) * bins * h * w * (5 * model.encoder.channels[scale] + 264)
            total.bytes_moved += work.bytes_moved
            total.products += work.products
            figures[f"stage {stage}"] = work.figures(given.bandwidth)
    figures["total"] = total.figures(given.bandwidth)
    report("floor", {"size": given.size, "views": given.views, **figures}, given.out)


if __name__ == "__main__":
    main()
