"""Scenes under a roof: objects on a table, and rooms. Metres, z up."""

from __future__ import annotations

import numpy as np

from gbinet.render import shapes
from gbinet.render.lighting import ambient_light, direction, lamp_colour, studio
from gbinet.render.mesh import join
from gbinet.render.props import Store, placed
from gbinet.render.scenery import Draft, Layout, Light, Part, triple
from gbinet.render.seeding import Generator, log_uniform
from gbinet.render.shapes import box, pose, quad

# ---- table -------------------------------------------------------------------------------------------------


def table(rng: Generator, store: Store) -> Draft:
    """Objects on a table top, as on a turntable or in a studio."""
    parts = [_table_top(rng, store)]
    things, spheres = _heap(rng, store, int(rng.choice([1, 3, 5, 8, 12, 16])), rng.uniform(0.05, 0.18), 0.0)
    parts += things
    if rng.random() < 0.6:  # walls behind
        distance = rng.uniform(0.45, 1.5)
        for turn in rng.permutation(4)[: rng.integers(1, 3)]:
            wall = quad(np.array([-4.0, distance, -1.0]), np.array([8.0, 0, 0]), np.array([0, 0, 4.0]))
            wall = wall.moved(pose(0, 0, 0, float(turn) * np.pi / 2, 0, 1))
            parts.append(store.flat(wall, log_uniform(rng, 0.2, 2.0), role="wall"))
    if rng.random() < 0.85:
        floor = quad(np.array([-5.0, -5, -0.75]), np.array([10.0, 0, 0]), np.array([0, 10.0, 0]))
        parts.append(store.flat(floor, log_uniform(rng, 0.3, 2.0), role="ground"))
    focus = np.array([0, 0, rng.uniform(0.02, 0.12)])
    lights = []
    for strength in [1.0, rng.uniform(0.2, 0.8), rng.uniform(0.1, 0.6)][: rng.integers(1, 4)]:
        position = focus + direction(rng, 0.4, 1.45) * rng.uniform(1.2, 4)
        lights.append(
            Light(triple(position), triple(focus), lamp_colour(rng, strength), 0.6, rng.uniform(0, 1))
        )
    radius = 0.15
    layout = Layout(focus, radius, spheres, np.array([-3, -3, 0.03]), np.array([3.0, 3, 3]), 0.2)
    return Draft(parts, lights, ambient_light(rng, rng.uniform(0.25, 0.9)), studio(rng, store), layout)


def _table_top(rng: Generator, store: Store) -> Part:
    tile = log_uniform(rng, 0.15, 1.2)
    kind = rng.random()
    if kind < 0.25:
        width, height = rng.uniform(0.8, 2.0), rng.uniform(0.005, 0.05)
        cloth = store.shape("ground")
        top = cloth.mesh.stretched((width, width, height / cloth.extent[2]))
        return store.flat(top.moved(pose(0, 0, -height / 2, 0, 0, 1)).textured(width), tile, role="ground")
    if kind < 0.45:
        top = shapes.cylinder(rng.uniform(0.25, 0.6), 0.03, 96).moved(pose(0, 0, -0.03, 0, 0, 1))
        return store.flat(top, tile, role="ground")
    w, d = rng.uniform(0.6, 2.5), rng.uniform(0.6, 2.5)
    top = box((w, d, 0.04), z=-0.04).moved(pose(0, 0, 0, rng.uniform(0, np.pi), 0, 1))
    return store.flat(top, tile, role="ground")


def _heap(
    rng: Generator, store: Store, count: int, spread: float, ground: float, scale: float = 1.0
) -> tuple[list[Part], np.ndarray]:
    """Things that stand, lie or lean close together, some on top of boxes. Parts, spheres [n, 4]."""
    parts: list[Part] = []
    circles: list[tuple[float, float, float]] = []
    spheres: list[np.ndarray] = []
    for _ in range(count):
        thing = store.thing()
        size = float(np.clip(thing.metres * rng.uniform(0.7, 1.3), 0.04, 0.4)) * scale
        lying = rng.random() < 0.2
        around = size * 0.45 * max(thing.extent[0], thing.extent[2] if lying else thing.extent[1])
        x, y = _free_position(rng, circles, around, spread * scale)
        z = ground
        if rng.random() < 0.25:  # on a box
            w, h = 2.2 * around * rng.uniform(0.9, 1.3), rng.uniform(0.02, 0.12) * scale
            base = box((w, w * rng.uniform(0.8, 1.1), h)).moved(
                pose(x, y, ground, rng.uniform(0, np.pi), 0, 1)
            )
            parts.append(store.flat(base, w / log_uniform(rng, 0.5, 2)))
            z, around = ground + h, w * 0.6
        tilt = 0.0 if lying or rng.random() < 0.7 else rng.normal(0, 0.12)
        part, sphere = placed(
            thing, x, y, z - abs(tilt) * around * 0.5, size, rng.uniform(0, 2 * np.pi), tilt, lying
        )
        parts.append(part)
        circles.append((x, y, around))
        spheres.append(sphere)
    return parts, np.array(spheres).reshape(-1, 4)


def _free_position(
    rng: Generator, circles: list[tuple[float, float, float]], radius: float, spread: float
) -> tuple[float, float]:
    """A position near the middle that hardly overlaps any circle."""
    x = y = 0.0
    for attempt in range(60):
        reach = spread * (1 + attempt / 12)
        x, y = rng.normal(0, reach * 0.6, 2)
        if all((x - a) ** 2 + (y - b) ** 2 > (0.9 * (radius + r)) ** 2 for a, b, r in circles):
            break
    return float(x), float(y)


# ---- room --------------------------------------------------------------------------------------------------


def room(rng: Generator, store: Store) -> Draft:
    """The inside of a room with furniture, pictures, and small things on tables."""
    w, d, h = rng.uniform(3, 7), rng.uniform(3, 7), rng.uniform(2.3, 3.2)
    low = np.array([-w / 2, -d / 2, 0.0])
    X, Y, Z = np.diag([w, d, h])
    parts = [store.flat(quad(low, X, Y), log_uniform(rng, 0.4, 2.0), role="ground")]
    tile = log_uniform(rng, 0.8, 3.0)
    parts.append(
        store.flat(quad(low + Z, X, Y), tile, "blank" if rng.random() < 0.6 else None, role="ceiling")
    )
    walls = [(low, X, Z), (low + X, Y, Z), (low + X + Y, -X, Z), (low + Y, -Y, Z)]
    paper = store.material("blank" if rng.random() < 0.3 else None)
    tile = log_uniform(rng, 0.5, 3.0)
    for corner, along, up in walls:
        wall = quad(corner, along, up)
        if rng.random() < 0.6:
            parts.append(Part(wall.textured(1 / tile), paper, "wall"))
        else:
            parts.append(store.flat(wall, tile, role="wall"))
        parts += _wall_things(rng, store, corner, along, h)
    spheres = []
    circles: list[tuple[float, float, float]] = []
    for _ in range(int(rng.integers(4, 11))):
        piece = store.furniture()
        around = 0.5 * piece.metres * max(piece.extent[:2])
        x, y = rng.uniform(low[:2] + around * 0.8, -low[:2] - around * 0.8)
        if any((x - a) ** 2 + (y - b) ** 2 < (0.8 * (around + r)) ** 2 for a, b, r in circles):
            continue
        part, sphere = placed(
            piece, x, y, 0, piece.metres, rng.integers(0, 4) * np.pi / 2 + rng.normal(0, 0.1)
        )
        circles.append((x, y, around))
        parts.append(part)
        spheres.append(sphere)
    table_parts, table_spheres = _laid_table(rng, store, low)
    parts += table_parts
    spheres += table_spheres
    lights = [_room_lamp(rng, low, h) for _ in range(int(rng.integers(1, 4)))]
    layout = Layout(
        np.array([0, 0, 1.0]),
        min(w, d) / 2,
        np.array(spheres).reshape(-1, 4),
        low + np.array([0.4, 0.4, 0.6]),
        -low + np.array([-0.4, -0.4, h - 0.4]),
        0.35,
    )
    return Draft(parts, lights, ambient_light(rng, rng.uniform(0.3, 0.9)), studio(rng, store), layout)


def _room_lamp(rng: Generator, low: np.ndarray, height: float) -> Light:
    x, y = rng.uniform(low[:2] * 0.8, -low[:2] * 0.8)
    position = np.array([x, y, height - 0.25])
    target = np.array([x * 0.7, y * 0.7, 0.3])
    return Light(
        triple(position), triple(target), lamp_colour(rng, rng.uniform(0.4, 1)), 3.5, rng.uniform(0.2, 0.8)
    )


def _wall_things(
    rng: Generator, store: Store, corner: np.ndarray, along: np.ndarray, height: float
) -> list[Part]:
    """Pictures, boards, doors and shelves on a wall."""
    parts = []
    length = float(np.linalg.norm(along))
    unit = along / length
    inward = np.array([-unit[1], unit[0], 0.0])
    for _ in range(int(rng.integers(0, 5))):
        w = min(rng.uniform(0.3, 1.6), 0.8 * length)
        h = min(w * rng.uniform(0.5, 1.8), height * 0.8)
        at = rng.uniform(w / 2, length - w / 2)
        z = rng.uniform(0, height - h)
        thick = log_uniform(rng, 0.01, 0.3)
        centre = corner + unit * at + inward * thick / 2
        turn = float(np.arctan2(unit[1], unit[0]))
        board = box((w, thick, h)).moved(pose(float(centre[0]), float(centre[1]), z, turn, 0, 1))
        parts.append(store.flat(board, max(w, h), role="hung"))
    return parts


def _laid_table(rng: Generator, store: Store, low: np.ndarray) -> tuple[list[Part], list[np.ndarray]]:
    """A table with small things on it."""
    w, d, h = rng.uniform(0.8, 1.6), rng.uniform(0.6, 1.0), rng.uniform(0.45, 0.8)
    x, y = rng.uniform(low[:2] * 0.6, -low[:2] * 0.6)
    legs = [
        box((0.05, 0.05, h), (sx * (w / 2 - 0.05), sy * (d / 2 - 0.05))) for sx in (-1, 1) for sy in (-1, 1)
    ]
    board = join([*legs, box((w, d, 0.04), z=h)])
    turn = rng.uniform(0, np.pi)
    parts = [store.flat(board.moved(pose(x, y, 0, turn, 0, 1)), log_uniform(rng, 0.3, 1.5))]
    things, spheres = _heap(rng, store, int(rng.integers(2, 7)), 0.3, h + 0.04)
    move = pose(x, y, 0, 0, 0, 1)
    parts += [Part(p.mesh.moved(move), p.material) for p in things]
    return parts, [np.array([x, y, h, 0.55])] + [s + np.array([x, y, 0, 0]) for s in spheres]
