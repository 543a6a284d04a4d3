"""`gbinet benchmark`: time and memory of a depth map on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gbinet.cli.options import Device, OutFile, Size, Weights
from gbinet.cli.say import for_programs, say, tell
from gbinet.inference.device import Precision

if TYPE_CHECKING:
    from gbinet.inference.resources import Resources


def speed(
    size: Size = (1600, 1152),
    views: int = 5,
    repeat: int = 10,
    weights: Weights = None,
    device: Device = "auto",
    precision: Precision = "auto",
    out: OutFile = None,
) -> None:
    """Measure the median time and the peak memory of one depth map.

    Args:
        size: WIDTHxHEIGHT of the images.
        views: Images per depth map; all of them are encoded.
        repeat: Number of timed runs, after two warm-up runs.
        weights: Name of bundled weights, a weights file of gbinet, or a published .ckpt.
        precision: auto is float16 on CUDA, bfloat16 for part of the network on CPUs that support it, else
            float32.
        out: JSON file to write.
    """
    from gbinet.inference.resources import resources_of_depth_map

    _show([resources_of_depth_map(weights, device, precision, *size, views, repeat)], device, out)


def memory(
    size: Size = (1600, 1152),
    views: int = 5,
    weights: Weights = None,
    device: Device = "auto",
    precision: Precision = "auto",
    out: OutFile = None,
) -> None:
    """Measure the peak memory of one depth map, and how it grows with pixels and views.

    Args:
        size: WIDTHxHEIGHT of the largest images; a quarter of the pixels is measured as well.
        views: Images per depth map; two more are measured as well.
        weights: Name of bundled weights, a weights file of gbinet, or a published .ckpt.
        precision: auto is float16 on CUDA, bfloat16 for part of the network on CPUs that support it, else
            float32.
        out: JSON file to write.
    """
    from gbinet.inference.resources import in_own_process

    width, height = size
    shapes = [(width // 2, height // 2, views), (width, height, views), (width, height, views + 2)]
    taken = [in_own_process(weights, device, precision, *shape, 1) for shape in shapes]
    small, large, more = taken
    megapixels = (large.width * large.height - small.width * small.height) / 1e6
    per_megapixel, per_view = (
        (large.peak_mib - small.peak_mib) / megapixels,
        (more.peak_mib - large.peak_mib) / 2,
    )
    _show(taken, device, out, {"mib_per_megapixel": per_megapixel, "mib_per_view": per_view})
    say(f"{per_megapixel:.0f} MiB for each megapixel")
    say(f"{per_view:.0f} MiB for each further view at {width}x{height}")


def _show(
    taken: list[Resources], device: str, out: Path | None, more: dict[str, float] | None = None
) -> None:
    from gbinet.formats.atomic import write_json
    from gbinet.inference.device import pick_device

    where = pick_device(device)
    kind = "allocated" if where.type == "cuda" else "growth of the process"
    table = Table("images", "views", "ms", f"peak MiB ({kind})")
    for one in taken:
        values = (
            f"{one.width}x{one.height}",
            f"{one.views}",
            f"{one.milliseconds:.1f}",
            f"{one.peak_mib:.0f}",
        )
        table.add_row(*values)
    Console(stderr=for_programs()).print(table)
    content = {"device": str(where), "memory": kind, "costs": [asdict(one) for one in taken], **(more or {})}
    if out is not None:
        say(f"figures in {write_json(out, content)}")
    tell(content)


run = {"speed": speed, "memory": memory}
