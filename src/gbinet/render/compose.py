"""From a seed to a scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gbinet.errors import InputError
from gbinet.render.alter import altered
from gbinet.render.assets import AssetLibrary
from gbinet.render.difficulties import OF_SCENES, Difficulties
from gbinet.render.indoors import room, table
from gbinet.render.outdoors import facade, terrain
from gbinet.render.props import Store
from gbinet.render.scenery import Draft, RenderScene, assemble
from gbinet.render.seeding import Generator, generator

Composer = Callable[[Generator, Store], Draft]
KINDS: dict[str, Composer] = {"table": table, "room": room, "facade": facade, "terrain": terrain}
_SHARES = [0.55, 0.2, 0.15, 0.1]  # how often each kind is drawn
_LIFE_SHARES = [0.32, 0.38, 0.18, 0.12]  # the same for scenes with difficulties: more rooms


def make_scene(
    seed: int,
    assets: AssetLibrary | None = None,
    kind: str | None = None,
    device: torch.device | str = "cpu",
    difficulties: Difficulties | None = None,
) -> RenderScene:
    """The scene of a seed. kind: one of KINDS, None = a random one. difficulties: None = ordinary."""
    if kind is not None and kind not in KINDS:
        raise InputError(f"there is no scene kind '{kind}'; the kinds are {', '.join(KINDS)}")
    shares = _SHARES if difficulties is None else _LIFE_SHARES
    name = kind or str(generator(seed, "kind").choice(list(KINDS), p=shares))
    rng = generator(seed, "scene", name)
    store = Store(rng, assets, torch.device(device))
    draft = KINDS[name](rng, store)
    names = None
    if difficulties is not None:
        amounts = difficulties.drawn(OF_SCENES, seed, "scene")
        draft, names = altered(draft, name, seed, amounts, store), tuple(amounts)
    parts = [part for part in draft.parts if len(part.mesh.faces) > 0]
    return assemble(name, seed, replace(draft, parts=parts), torch.device(device), names)
