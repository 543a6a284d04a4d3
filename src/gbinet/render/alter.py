"""Difficulties of scenes: they turn an ordinary draft into one with gloss, plain paint, glass, sky, wires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from gbinet.render.lighting import sky as sky_texture
from gbinet.render.paint import colour
from gbinet.render.props import Store, placed
from gbinet.render.scenery import Draft, Layout, Material, Part
from gbinet.render.seeding import Generator, generator, log_uniform
from gbinet.render.texture import Texture, make_texture
from gbinet.render.thin import tubes

Change = Callable[[Part], Part]

_GAP = 0.05  # metres that cameras keep from a wall
_THIN_FACTOR = {"facade": 2, "terrain": 4}  # times as many thin things in large scenes
# Kind of scene -> least and largest size of a thin thing, in metres.
_THIN_SIZES = {"table": (0.12, 0.45), "room": (0.5, 1.8), "facade": (0.8, 4.0), "terrain": (6.0, 20.0)}


def altered(draft: Draft, kind: str, seed: int, amounts: dict[str, float], store: Store) -> Draft:
    """The draft with these difficulties; each draws from a generator of its own."""
    for name, amount in amounts.items():
        rng = generator(seed, "alter", name)
        draft = ALTERATIONS[name](draft, kind, amount, rng, store.with_rng(rng))
    return replace(draft, layout=_before_walls(draft)) if kind == "table" else draft


def gloss(draft: Draft, kind: str, amount: float, rng: Generator, store: Store) -> Draft:
    def shine(part: Part) -> Part:
        strength, sharpness = rng.uniform(0.3, 1.5), log_uniform(rng, 30, 500)
        mirror = max(part.material.mirror, rng.uniform(0, 0.15))
        return _with(part, specular=strength, shininess=sharpness, mirror=mirror)

    return _some(draft, rng, amount, shine)


def paint(draft: Draft, kind: str, amount: float, rng: Generator, store: Store) -> Draft:
    """Walls and ceilings of one colour; grounds and things less often, as furniture is."""
    walls, others = store.material("blank"), [store.material("blank") for _ in range(3)]

    def cover(part: Part) -> Part:
        if part.role in ("wall", "ceiling"):
            return replace(part, material=walls)
        return replace(part, material=others[int(rng.integers(3))])

    draft = _some(draft, rng, amount, cover, ("wall", "ceiling"))
    draft = _some(draft, rng, 0.5 * amount, cover, ("ground",))
    return _some(draft, rng, 0.5 * amount, cover, ("thing", "hung"))


def plastic(draft: Draft, kind: str, amount: float, rng: Generator, store: Store) -> Draft:
    white = [store.texture("plastic") for _ in range(2)]

    def mould(part: Part) -> Part:
        tint = float(rng.uniform(0.85, 1.05))
        material = Material(white[int(rng.integers(2))], (tint, tint, tint), rng.uniform(0.05, 0.5))
        return replace(part, material=replace(material, shininess=log_uniform(rng, 10, 150)))

    return _some(draft, rng, amount, mould, ("thing",))


def glass(draft: Draft, kind: str, amount: float, rng: Generator, store: Store) -> Draft:
    """Panes and some other things reflect the surroundings."""

    def reflect(part: Part) -> Part:
        dark = float(rng.uniform(0.2, 0.7))
        return _with(
            part,
            tint=(dark, dark, dark),
            specular=rng.uniform(0.3, 1.0),
            shininess=400.0,
            mirror=rng.uniform(0.6, 0.95),
        )

    draft = _some(draft, rng, 1.0, reflect, ("pane",))
    draft = _some(draft, rng, min(1.0, 1.5 * amount), reflect, ("hung",))
    return _some(draft, rng, amount, reflect, ("thing",))


def sky(draft: Draft, kind: str, amount: float, rng: Generator, store: Store) -> Draft:
    """A bright background without depth: the sky, a white screen, or the light in a window."""
    parts = draft.parts
    if kind == "table":
        parts = [p for p in parts if p.role != "wall" and not (p.role == "ground" and _is_floor(p))]
    if kind == "room":
        walls = [i for i, p in enumerate(parts) if p.role == "wall"]
        for index in rng.permutation(walls)[: rng.integers(1, 3)]:
            parts = [*parts[:index], _window(rng, parts[index]), *parts[index + 1 :]]
    shade = 1 / log_uniform(rng, min(1.5, amount), amount)  # of the scene against its background
    lights = [replace(lamp, colour=_scaled(lamp.colour, shade)) for lamp in draft.lights]
    above, below = draft.ambient
    return replace(
        draft,
        parts=parts,
        lights=lights,
        ambient=(_scaled(above, shade), _scaled(below, shade)),
        surroundings=_bright(rng, store.device),
    )


def thin(draft: Draft, kind: str, amount: float, rng: Generator, store: Store) -> Draft:
    return _with_things(draft, kind, int(rng.integers(2, max(3, int(amount) + 1))), rng, store)


def repetition(draft: Draft, kind: str, amount: float, rng: Generator, store: Store) -> Draft:
    """Tiles that are all alike, and fences."""
    tiles = [store.material("tiles") for _ in range(2)]

    def tile(part: Part) -> Part:
        return replace(part, material=tiles[int(rng.integers(2))])

    draft = _some(draft, rng, amount, tile, ("wall", "ground"))
    names = ("lattice", "railing", "lattice")
    return _with_things(draft, kind, int(rng.integers(1, 4)), rng, store, names, least=0.6)


ALTERATIONS: dict[str, Callable[[Draft, str, float, Generator, Store], Draft]] = {
    "gloss": gloss,
    "paint": paint,
    "plastic": plastic,
    "glass": glass,
    "sky": sky,
    "thin": thin,
    "repetition": repetition,
}


# ---- helpers -----------------------------------------------------------------------------------------------


def _some(
    draft: Draft, rng: Generator, share: float, change: Change, roles: tuple[str, ...] | None = None
) -> Draft:
    """The draft with a share of the parts with these roles changed; at least one, if there are any."""
    candidates = [i for i, part in enumerate(draft.parts) if roles is None or part.role in roles]
    if not candidates:
        return draft
    count = max(1, int(rng.binomial(len(candidates), share)))
    chosen = set(rng.permutation(candidates)[:count].tolist())
    return replace(draft, parts=[change(p) if i in chosen else p for i, p in enumerate(draft.parts)])


def _with(part: Part, **changes: object) -> Part:
    return replace(part, material=replace(part.material, **changes))  # type: ignore[arg-type]


def _scaled(rgb: tuple[float, float, float], factor: float) -> tuple[float, float, float]:
    return (rgb[0] * factor, rgb[1] * factor, rgb[2] * factor)


def _before_walls(draft: Draft) -> Layout:
    """The layout with cameras kept on the table's side of its walls, which are normal to x or y."""
    low, high = draft.layout.low.copy(), draft.layout.high.copy()
    for wall in (part.mesh.positions for part in draft.parts if part.role == "wall"):
        middle = wall[:, :2].mean(0).tolist()
        axis = int(abs(middle[1]) > abs(middle[0]))
        if middle[axis] > 0:
            high[axis] = min(high[axis], middle[axis] - _GAP)
        else:
            low[axis] = max(low[axis], middle[axis] + _GAP)
    return replace(draft.layout, low=low, high=high)


def _is_floor(part: Part) -> bool:
    """Whether a ground is the floor below a table: only the floor is a quad."""
    return len(part.mesh.positions) == 4


def _bright(rng: Generator, device: torch.device) -> Texture:
    choice = rng.random()
    if choice < 0.55:  # overexposed, or a white screen
        return make_texture(torch.full((3, 256, 256), rng.uniform(0.9, 1.0), device=device))
    if choice < 0.65:
        return make_texture(colour(rng, device, 0.7, 0.98).expand(3, 256, 256))
    return sky_texture(rng, device)


def _window(rng: Generator, wall: Part) -> Part:
    """A frame with bars in place of a wall (a quad: its corners are its four points)."""
    corner, right, _, up = wall.mesh.positions.cpu().double().numpy()
    along, rise = right - corner, up - corner
    bar = rng.uniform(0.02, 0.05)
    across, rows = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    lines = [(corner + along * s, corner + along * s + rise) for s in np.linspace(0, 1, across + 1)]
    lines += [(corner + rise * s, corner + rise * s + along) for s in np.linspace(0, 1, rows + 1)]
    bars = tubes(np.array(lines), bar)
    return Part(bars.to(wall.mesh.positions.device), wall.material, "wall")


def _with_things(
    draft: Draft,
    kind: str,
    count: int,
    rng: Generator,
    store: Store,
    names: tuple[str, ...] | None = None,
    least: float = 0.0,
) -> Draft:
    """The draft with thin things around its middle."""
    low, high = _THIN_SIZES[kind]
    parts, layout = list(draft.parts), draft.layout
    spheres = []
    ground = float(layout.focus[2]) - 2.0 if kind == "terrain" else 0.0
    for _ in range(count * _THIN_FACTOR.get(kind, 1)):
        thing = store.thin(names)
        size = log_uniform(rng, low + least * (high - low), high)
        reach = max(1.2 * layout.radius, 0.5 * size)
        x, y = layout.focus[:2] + rng.uniform(-reach, reach, 2)
        if kind == "facade":  # before the house
            y = -0.3 - abs(y) * 0.6
        if kind == "room":
            x, y = rng.uniform(layout.low[:2], layout.high[:2])
        part, sphere = placed(thing, float(x), float(y), ground, size, rng.uniform(0, 2 * np.pi))
        parts.append(part)
        spheres.append(sphere * [1, 1, 1, 0.5])  # cameras may come close
    if kind in ("room", "facade") and rng.random() < 0.5:
        parts.append(_cables(rng, draft, store))
    obstacles = np.concatenate([layout.obstacles.reshape(-1, 4), np.array(spheres)])
    return replace(draft, parts=parts, layout=replace(layout, obstacles=obstacles))


def _cables(rng: Generator, draft: Draft, store: Store) -> Part:
    """Cables across the space of the cameras, above head height."""
    layout = draft.layout
    ends = rng.uniform(layout.low, layout.high, (int(rng.integers(1, 5)), 2, 3))
    ends[..., 2] = layout.focus[2] + rng.uniform(0.3, 1.0, ends.shape[:2]) * max(1.0, 0.3 * layout.radius)
    return store.flat(tubes(ends, rng.uniform(0.003, 0.012)), 0.3)
