"""The fixed validation sets: defined by seeds and held-out asset names, never trained on.

`validation_samples` are DTU-like (tables at 0.5 to 0.9 m, narrow views, millimetres, range 425 to 935 mm), in
two parts: "free" needs no files, so that anyone can reproduce it; "assets" uses the held-out names of a
library of objects, of the first one where the folder holds several. `life_samples` are of all kinds, each
with one difficulty; they have no common unit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gbinet.errors import InputError
from gbinet.render.assets import AssetLibrary, libraries
from gbinet.render.compose import KINDS, make_scene
from gbinet.render.difficulties import NAMES, Difficulties
from gbinet.render.source import RenderConfig, Sample, render_sample

PARTS = ("free", "assets")
SCENES = 16  # per part, one sample each
RANGE = (425.0, 935.0)  # millimetres
_FIRST_SEED = 1 << 32  # training scenes have seeds below 2^31

# What the scenes of the other set have: nothing difficult, one difficulty each, and a mixture as in training.
LIFE = ("none", *NAMES, "mixed")
LIFE_SCENES = 4  # of each of them: one of each kind of scene
_FIRST_LIFE_SEED = 1 << 33

CALIBRATION = 100  # number of the first scene for calibrating confidence; validation uses smaller ones


def validation_samples(
    part: str,
    assets: Path | str | None = None,
    size: tuple[int, int] = (1600, 1152),  # width, height
    device: torch.device | str = "cpu",
    scenes: int = SCENES,
    views: int = 5,
    first: int = 0,  # number of the first scene
) -> Iterator[Sample]:
    """The samples of one part, one after the other. Other sizes show the same scenes in the same cameras."""
    if part not in PARTS:
        raise InputError(f"there is no validation part '{part}'; the parts are {', '.join(PARTS)}")
    if part == "assets" and assets is None:
        raise InputError("validation part 'assets' needs an asset folder")
    library = None
    if part == "assets" and assets is not None:
        library = AssetLibrary.open(libraries(Path(assets))[0], device, held_out=True)
    config = RenderConfig(width=size[0], height=size[1], views=views, dtu_like=True)
    limits = torch.tensor(RANGE, dtype=torch.float32, device=device)
    for number in range(first, first + scenes):
        seed = _FIRST_SEED + number
        sample = render_sample(make_scene(seed, library, "table", device), (seed, 0), config)
        yield replace(sample, depth_range=limits, name=f"{part}-{number:02d}")


def life_samples(
    assets: Path | str | None = None,
    size: tuple[int, int] = (960, 704),  # width, height
    device: torch.device | str = "cpu",
    scenes: int = LIFE_SCENES,
    views: int = 5,
    chosen: Sequence[str] = LIFE,
    first: int = 0,  # number of the first scene of each
) -> Iterator[Sample]:
    """Scenes of each difficulty, one sample each, named DIFFICULTY/NUMBER. Objects are held-out ones."""
    if unknown := sorted(set(chosen) - set(LIFE)):
        raise InputError(f"there are no validation scenes {unknown}; choose of {', '.join(LIFE)}")
    library = None if assets is None else AssetLibrary.open(assets, device, held_out=True)
    for name in chosen:
        hard = Difficulties() if name == "mixed" else Difficulties().only(*{name} - {"none"})
        config = RenderConfig(width=size[0], height=size[1], views=views, difficulties=hard)
        for number in range(first, first + scenes):
            seed = _FIRST_LIFE_SEED + (zlib.crc32(name.encode()) << 8) + number
            kind = list(KINDS)[number % len(KINDS)]
            scene = make_scene(seed, library, kind, device, hard)
            yield replace(render_sample(scene, (seed, 0), config), name=f"{name}/{number:02d}")
