"""Measures how the peak memory of a depth map grows with pixels and views, and that of a 24-megapixel image.

    python benchmarks/memory.py                                       # GPU; includes 6000x4000 within 8 GiB
    python benchmarks/memory.py --device cpu --base 160x128 --large ""

Peaks are those of `gbinet benchmark memory`: on CUDA, torch.cuda.max_memory_allocated, including weights and
input images (float32); on a CPU, the growth of a separate process. The large image is computed in one piece,
without tiles, and torch may not reserve more than the limit.
"""

from __future__ import annotations

import argparse
import gc

import numpy as np
import torch
from _common import report

from gbinet.inference.device import pick_device
from gbinet.inference.resources import Resources, in_own_process, resources_of_depth_map

SIDES = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the base size
VIEWS = (2, 3, 5, 7, 9)


def resources(device: torch.device, weights: str | None, width: int, height: int, views: int) -> Resources:
    if device.type != "cuda":
        return in_own_process(weights, str(device), "auto", width, height, views, 1)
    gc.collect()
    torch.cuda.empty_cache()
    return resources_of_depth_map(weights, str(device), "auto", width, height, views, 1)


def line(x: list[float], peaks: list[float]) -> tuple[float, float, float]:
    """Slope, intercept and largest deviation of a peak from the fitted line, as a share of it."""
    slope, intercept = np.polyfit(x, peaks, 1)
    fitted = slope * np.asarray(x) + intercept
    return float(slope), float(intercept), float(np.abs(np.asarray(peaks) / fitted - 1).max())


def against_pixels(device: torch.device, weights: str | None, base: tuple[int, int]) -> dict[str, object]:
    sizes = [tuple(round(side * n / 128) * 128 for n in base) for side in SIDES]
    found = [resources(device, weights, width, height, 5) for width, height in sizes]
    pixels = [c.width * c.height for c in found]
    slope, intercept, deviation = line([float(p) for p in pixels], [c.peak_mib for c in found])
    return {
        "MiB": {f"{c.width}x{c.height}": round(c.peak_mib, 1) for c in found},
        "bytes per pixel, 5 views": round(slope * 2**20, 1),
        "MiB per megapixel, 5 views": round(slope * 1e6, 1),
        "intercept MiB": round(intercept, 1),
        "largest deviation from the line": round(deviation, 4),
    }


def against_views(device: torch.device, weights: str | None, base: tuple[int, int]) -> dict[str, object]:
    found = [resources(device, weights, *base, views) for views in VIEWS]
    slope, intercept, deviation = line([float(v) for v in VIEWS], [c.peak_mib for c in found])
    return {
        "MiB": {str(c.views): round(c.peak_mib, 1) for c in found},
        "MiB per view": round(slope, 1),
        "bytes per pixel and view": round(slope * 2**20 / (base[0] * base[1]), 1),
        "intercept MiB": round(intercept, 1),
        "largest deviation from the line": round(deviation, 4),
    }


def large(
    device: torch.device, weights: str | None, size: tuple[int, int], limit: float
) -> dict[str, object]:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        device = torch.device("cuda", torch.cuda.current_device())  # with its number, which torch asks for
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit * 2**30 / total), device)
    found = resources(device, weights, *size, 5)
    figures: dict[str, object] = {"size": f"{size[0]}x{size[1]}", "views": 5, "limit GiB": limit}
    figures |= {"peak GiB": round(found.peak_mib / 1024, 2), "ms": round(found.milliseconds, 1)}
    if device.type == "cuda":
        figures["reserved GiB"] = round(torch.cuda.max_memory_reserved(device) / 2**30, 2)
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", help="file or name; default: the bundled weights")
    parser.add_argument(
        "--base", default="1600x1152", help="WIDTHxHEIGHT of the views and of the middle size"
    )
    parser.add_argument("--large", default="6000x4000", help="WIDTHxHEIGHT; empty: none")
    parser.add_argument("--limit", type=float, default=8.0, help="GiB for the large image")
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    device = pick_device(given.device)
    width, height = (int(n) for n in given.base.split("x"))
    figures: dict[str, object] = {
        "against pixels": against_pixels(device, given.weights, (width, height)),
        "against views": against_views(device, given.weights, (width, height)),
    }
    if given.large:
        wide, high = (int(n) for n in given.large.split("x"))
        figures["large"] = large(device, given.weights, (wide, high), given.limit)
    report("memory", figures, given.out)


if __name__ == "__main__":
    main()
