"""The fixed validation set: defined by seeds and held-out asset names, never trained on.

Two parts, both DTU-like (tables at 0.5 to 0.9 m, narrow views, millimetres, range 425 to 935 mm): "free"
needs no files, so that anyone can reproduce it; "assets" uses the held-out names of an asset folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from gbinet.errors import InputError
from gbinet.render.assets import AssetLibrary
from gbinet.render.compose import make_scene
from gbinet.render.source import RenderConfig, Sample, render_sample

PARTS = ("free", "assets")
SCENES = 16  # per part, one sample each
RANGE = (425.0, 935.0)  # millimetres
_FIRST_SEED = 1 << 32  # training scenes have seeds below 2^31


def validation_samples(
    part: str,
    assets: Path | str | None = None,
    size: tuple[int, int] = (1600, 1152),  # width, height
    device: torch.device | str = "cpu",
    scenes: int = SCENES,
    views: int = 5,
) -> Iterator[Sample]:
    """The samples of one part, one after the other. Other sizes show the same scenes in the same cameras."""
    if part not in PARTS:
        raise InputError(f"there is no validation part '{part}'; the parts are {', '.join(PARTS)}")
    if part == "assets" and assets is None:
        raise InputError("validation part 'assets' needs an asset folder")
    library = None
    if part == "assets" and assets is not None:
        library = AssetLibrary.open(assets, device, held_out=True)
    config = RenderConfig(width=size[0], height=size[1], views=views, dtu_like=True)
    limits = torch.tensor(RANGE, dtype=torch.float32, device=device)
    for number in range(scenes):
        seed = _FIRST_SEED + number
        sample = render_sample(make_scene(seed, library, "table", device), (seed, 0), config)
        yield replace(sample, depth_range=limits, name=f"{part}-{number:02d}")
