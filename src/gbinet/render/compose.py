"""Four kinds of scene, each from one random generator: table, room, facade, terrain. Metres, z up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gbinet.errors import InputError
from gbinet.render import shapes
from gbinet.render.assets import AssetLibrary
from gbinet.render.chance import Chance, chance, log_uniform
from gbinet.render.mesh import Mesh, join
from gbinet.render.paint import Device, colour, mix, octave_noise, paint, unit_grid
from gbinet.render.props import Store, Thing, placed
from gbinet.render.shapes import box, pose, quad
from gbinet.render.stage import Layout, Light, Material, Part, RenderScene, assemble
from gbinet.render.texture import Texture, make_texture

Colour = tuple[float, float, float]


@dataclass
class Draft:
    """What a composer hands back."""

    parts: list[Part]
    lights: list[Light]
    ambient: tuple[Colour, Colour]
    surroundings: Texture
    layout: Layout


def make_scene(
    seed: int,
    assets: AssetLibrary | None = None,
    kind: str | None = None,
    device: torch.device | str = "cpu",
) -> RenderScene:
    """The scene of a seed; kind is one of KINDS (drawn when not given)."""
    if kind is not None and kind not in KINDS:
        raise InputError(f"there is no scene kind '{kind}'; the kinds are {', '.join(KINDS)}")
    name = kind or str(chance(seed, "kind").choice(list(KINDS), p=_SHARES))
    rng = chance(seed, "scene", name)
    store = Store(rng, assets, device)
    draft = KINDS[name](rng, store)
    parts = [part for part in draft.parts if len(part.mesh.faces) > 0]
    return assemble(
        name, seed, parts, draft.lights, draft.ambient, draft.surroundings, draft.layout, torch.device(device)
    )


# ---- light and surroundings --------------------------------------------------------------------------------


def _lamp_colour(rng: Chance, strength: float) -> Colour:
    warmth = rng.normal(0, 0.12)
    return (strength * (1 + warmth), strength, strength * (1 - warmth))


def _ambient(rng: Chance, strength: float) -> tuple[Colour, Colour]:
    above = _lamp_colour(rng, strength)
    below = rng.uniform(0.3, 0.9)
    return above, (above[0] * below, above[1] * below, above[2] * below)


def _direction(rng: Chance, low: float, high: float) -> np.ndarray:
    """Unit vector with an elevation between low and high (radians)."""
    up, around = rng.uniform(low, high), rng.uniform(0, 2 * np.pi)
    return np.array([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)])


def _sun(rng: Chance, focus: np.ndarray, radius: float, strength: float, low: float = 0.35) -> Light:
    position = focus + _direction(rng, low, 1.4) * radius * 12
    return Light(_triple(position), _triple(focus), _lamp_colour(rng, strength), radius)


def _triple(vector: np.ndarray) -> tuple[float, float, float]:
    return (float(vector[0]), float(vector[1]), float(vector[2]))


def _sky(rng: Chance, device: Device) -> Texture:
    """Sky above, haze at the horizon, ground below."""
    size = 256
    _, y = unit_grid(size, device)
    height = 1 - 2 * y  # 1 zenith, -1 nadir: v = sin(elevation)
    blue = torch.tensor([[[0.25]], [[0.45]], [[0.85]]], device=device) * rng.uniform(0.6, 1.1)
    haze = torch.full((3, 1, 1), rng.uniform(0.7, 0.95), device=device)
    sky = mix(haze, blue, height.clamp(0, 1).sqrt())
    clouds = torch.sigmoid(3 * (octave_noise(rng, size, device, 4, 6, 0.6) - rng.uniform(-1.5, 1.5)))
    sky = mix(sky, haze, clouds)
    ground = colour(rng, device, 0.15, 0.5)
    return make_texture(mix(ground, sky, (height * 40).clamp(0, 1)))


def _indoors(rng: Chance, store: Store) -> Texture:
    """Dim or bright studio, photo or painted room around the scene."""
    choice = rng.random()
    if choice < 0.35:  # the dark or plain back of a studio
        return make_texture(colour(rng, store.device, 0.02, 0.7).expand(3, 256, 256))
    if choice < 0.6:
        return paint(rng, "gradient", 256, store.device)
    return store.texture()


# ---- table -------------------------------------------------------------------------------------------------


def table(rng: Chance, store: Store) -> Draft:
    """Objects on a table top, as on a turntable or in a studio."""
    parts = [_table_top(rng, store)]
    things, spheres = _heap(rng, store, int(rng.choice([1, 2, 3, 5, 8, 12])), rng.uniform(0.05, 0.2), 0.0)
    parts += things
    if rng.random() < 0.6:  # walls behind
        distance = rng.uniform(0.45, 1.5)
        for turn in rng.permutation(4)[: rng.integers(1, 3)]:
            wall = quad(np.array([-4.0, distance, -1.0]), np.array([8.0, 0, 0]), np.array([0, 0, 4.0]))
            wall = wall.moved(pose(0, 0, 0, float(turn) * np.pi / 2, 0, 1))
            parts.append(store.flat(wall, log_uniform(rng, 0.2, 2.0)))
    else:
        floor = quad(np.array([-5.0, -5, -0.75]), np.array([10.0, 0, 0]), np.array([0, 10.0, 0]))
        parts.append(store.flat(floor, log_uniform(rng, 0.3, 2.0)))
    focus = np.array([0, 0, rng.uniform(0.02, 0.12)])
    lights = []
    for strength in [1.0, rng.uniform(0.2, 0.8), rng.uniform(0.1, 0.6)][: rng.integers(1, 4)]:
        position = focus + _direction(rng, 0.4, 1.45) * rng.uniform(1.2, 4)
        lights.append(Light(_triple(position), _triple(focus), _lamp_colour(rng, strength), 0.6, rng.uniform(0, 1)))
    radius = 0.15
    layout = Layout(focus, radius, spheres, np.array([-3, -3, 0.03]), np.array([3.0, 3, 3]))
    return Draft(parts, lights, _ambient(rng, rng.uniform(0.25, 0.9)), _indoors(rng, store), layout)


def _table_top(rng: Chance, store: Store) -> Part:
    tile = log_uniform(rng, 0.15, 1.2)
    kind = rng.random()
    if kind < 0.25:
        top = shapes.rolling(rng, rng.uniform(0.8, 2.0), rng.uniform(0.005, 0.05), 192)
        return store.flat(top, tile)
    if kind < 0.45:
        top = shapes.cylinder(rng.uniform(0.25, 0.6), 0.03, 96).moved(pose(0, 0, -0.03, 0, 0, 1))
        return store.flat(top, tile)
    w, d = rng.uniform(0.6, 2.5), rng.uniform(0.6, 2.5)
    return store.flat(box((w, d, 0.04), z=-0.04).moved(pose(0, 0, 0, rng.uniform(0, np.pi), 0, 1)), tile)


def _heap(
    rng: Chance, store: Store, count: int, spread: float, ground: float, scale: float = 1.0
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
        x, y = _free_place(rng, circles, around, spread * scale)
        z = ground
        if rng.random() < 0.25:  # on a box
            base = Thing(box((1, 1, 1)), store.material(), (1, 1, 1), 1)
            w, h = 2.2 * around * rng.uniform(0.9, 1.3), rng.uniform(0.02, 0.12) * scale
            mesh = base.mesh.stretched((w, w * rng.uniform(0.8, 1.1), h)).textured(log_uniform(rng, 0.5, 2))
            moved = mesh.moved(pose(x, y, ground, rng.uniform(0, np.pi), 0, 1))
            parts.append(Part(moved, base.material))
            z, around = ground + h, w * 0.6
        tilt = 0.0 if lying or rng.random() < 0.7 else rng.normal(0, 0.12)
        part, sphere = placed(thing, x, y, z - abs(tilt) * around * 0.5, size, rng.uniform(0, 2 * np.pi), tilt, lying)
        parts.append(part)
        circles.append((x, y, around))
        spheres.append(sphere)
    return parts, np.array(spheres).reshape(-1, 4)


def _free_place(
    rng: Chance, circles: list[tuple[float, float, float]], radius: float, spread: float
) -> tuple[float, float]:
    """A place near the middle that overlaps no circle by much."""
    x = y = 0.0
    for attempt in range(60):
        reach = spread * (1 + attempt / 12)
        x, y = rng.normal(0, reach * 0.6, 2)
        if all((x - a) ** 2 + (y - b) ** 2 > (0.9 * (radius + r)) ** 2 for a, b, r in circles):
            break
    return float(x), float(y)


# ---- room --------------------------------------------------------------------------------------------------


def room(rng: Chance, store: Store) -> Draft:
    """The inside of a room with furniture, pictures, and small things on tables."""
    w, d, h = rng.uniform(3, 7), rng.uniform(3, 7), rng.uniform(2.3, 3.2)
    low = np.array([-w / 2, -d / 2, 0.0])
    X, Y, Z = np.diag([w, d, h])
    parts = [
        store.flat(quad(low, X, Y), log_uniform(rng, 0.4, 2.0)),
        store.flat(quad(low + Z, X, Y), log_uniform(rng, 0.8, 3.0), "blank" if rng.random() < 0.6 else None),
    ]
    walls = [(low, X, Z), (low + X, Y, Z), (low + X + Y, -X, Z), (low + Y, -Y, Z)]
    paper = store.material("blank" if rng.random() < 0.3 else None)
    tile = log_uniform(rng, 0.5, 3.0)
    for corner, along, up in walls:
        wall = quad(corner, along, up)
        parts.append(Part(wall.textured(1 / tile), paper) if rng.random() < 0.6 else store.flat(wall, tile))
        parts += _wall_things(rng, store, corner, along, h)
    spheres = []
    circles: list[tuple[float, float, float]] = []
    for _ in range(int(rng.integers(4, 11))):
        piece = store.furniture()
        around = 0.5 * piece.metres * max(piece.extent[:2])
        x, y = rng.uniform(low[:2] + around * 0.8, -low[:2] - around * 0.8)
        if any((x - a) ** 2 + (y - b) ** 2 < (0.8 * (around + r)) ** 2 for a, b, r in circles):
            continue
        part, sphere = placed(piece, x, y, 0, piece.metres, rng.integers(0, 4) * np.pi / 2 + rng.normal(0, 0.1))
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
        low + [0.4, 0.4, 0.6],
        -low + [-0.4, -0.4, h - 0.4],
    )
    return Draft(parts, lights, _ambient(rng, rng.uniform(0.3, 0.9)), _indoors(rng, store), layout)


def _room_lamp(rng: Chance, low: np.ndarray, height: float) -> Light:
    x, y = rng.uniform(low[:2] * 0.8, -low[:2] * 0.8)
    position = np.array([x, y, height - 0.25])
    target = np.array([x * 0.7, y * 0.7, 0.3])
    return Light(_triple(position), _triple(target), _lamp_colour(rng, rng.uniform(0.4, 1)), 3.5, rng.uniform(0.2, 0.8))


def _wall_things(rng: Chance, store: Store, corner: np.ndarray, along: np.ndarray, height: float) -> list[Part]:
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
        parts.append(store.flat(board, max(w, h)))
    return parts


def _laid_table(rng: Chance, store: Store, low: np.ndarray) -> tuple[list[Part], list[np.ndarray]]:
    """A table with small things on it."""
    w, d, h = rng.uniform(0.8, 1.6), rng.uniform(0.6, 1.0), rng.uniform(0.45, 0.8)
    x, y = rng.uniform(low[:2] * 0.6, -low[:2] * 0.6)
    legs = [box((0.05, 0.05, h), (sx * (w / 2 - 0.05), sy * (d / 2 - 0.05))) for sx in (-1, 1) for sy in (-1, 1)]
    board = join([*legs, box((w, d, 0.04), z=h)])
    turn = rng.uniform(0, np.pi)
    parts = [store.flat(board.moved(pose(x, y, 0, turn, 0, 1)), log_uniform(rng, 0.3, 1.5))]
    things, spheres = _heap(rng, store, int(rng.integers(2, 7)), 0.3, h + 0.04)
    move = torch.eye(4)[:3]
    move[0, 3], move[1, 3] = x, y
    parts += [Part(p.mesh.moved(move), p.material) for p in things]
    return parts, [np.array([x, y, h, 0.55])] + [s + [x, y, 0, 0] for s in spheres]


# ---- facade ------------------------------------------------------------------------------------------------


def facade(rng: Chance, store: Store) -> Draft:
    """A street: the front of a house with recessed windows, a pavement, and things before it."""
    columns, rows = int(rng.integers(3, 9)), int(rng.integers(2, 6))
    bay, storey = rng.uniform(1.8, 3.5), rng.uniform(2.6, 3.6)
    width, height = columns * bay, rows * storey
    parts = _front(rng, store, columns, rows, bay, storey)
    ground = quad(np.array([-60.0, -60, 0]), np.array([120.0, 0, 0]), np.array([0, 75.0, 0]))
    parts.append(store.flat(ground, log_uniform(rng, 1, 4)))
    pavement = box((width + 8, 2.5, 0.15), (0, -1.25))
    parts.append(store.flat(pavement, log_uniform(rng, 0.5, 2)))
    for side in (-1, 1):  # neighbours
        w, h = rng.uniform(5, 14), rng.uniform(4, 16)
        offset = rng.uniform(-1.5, 3)
        house = box((w, 10, h), (side * (width / 2 + w / 2 + rng.uniform(0, 3)), 5 + offset))
        parts.append(store.flat(house, log_uniform(rng, 1.5, 5)))
    spheres = []
    for _ in range(int(rng.integers(3, 12))):
        thing = store.furniture() if rng.random() < 0.7 else store.shape()
        size = log_uniform(rng, 0.5, 3.0)
        x, y = rng.uniform(-width / 2, width / 2), -rng.uniform(0.6, 7)
        part, sphere = placed(thing, x, y, 0.0, size, rng.uniform(0, 2 * np.pi))
        parts.append(part)
        spheres.append(sphere)
    parts += [_post(rng, store, rng.uniform(-width / 2, width / 2)) for _ in range(int(rng.integers(0, 4)))]
    focus = np.array([0, 0, height * 0.4])
    radius = 0.6 * max(width, height)
    sun = _sun(rng, focus, radius, 1.0)
    position = np.array(sun.position)
    position[1] = -abs(position[1])  # the front gets the sun
    lights = [Light(_triple(position), sun.target, sun.colour, sun.reach)]
    layout = Layout(
        focus, radius, np.array(spheres).reshape(-1, 4), np.array([-width, -25.0, 0.8]), np.array([width, -2.0, 14.0])
    )
    return Draft(parts, lights, _ambient(rng, rng.uniform(0.3, 0.8)), _sky(rng, store.device), layout)


def _front(rng: Chance, store: Store, columns: int, rows: int, bay: float, storey: float) -> list[Part]:
    """Piers and spandrels of masonry around recessed panes, with sills, cornices and a door."""
    width = columns * bay
    window_w, window_h = bay * rng.uniform(0.35, 0.65), storey * rng.uniform(0.4, 0.7)
    recess, sill = rng.uniform(0.08, 0.4), storey * rng.uniform(0.15, 0.3)
    masonry: list[Mesh] = []
    for i in range(columns + 1):
        inner = bay - window_w if 0 < i < columns else (bay - window_w) / 2
        x = -width / 2 + i * bay + (0 if 0 < i < columns else (0.25 if i == 0 else -0.25) * (bay - window_w))
        masonry.append(box((inner, recess, rows * storey), (x, recess / 2)))
    trim: list[Mesh] = []
    for i in range(columns):
        x = -width / 2 + (i + 0.5) * bay
        for j in range(rows):
            z = j * storey
            masonry.append(box((window_w, recess, sill), (x, recess / 2), z))
            top = z + sill + window_h
            masonry.append(box((window_w, recess, z + storey - top), (x, recess / 2), top))
            trim.append(box((window_w * 1.15, 0.18, 0.08), (x, -0.05), z + sill - 0.08))
            bar = rng.uniform(0.04, 0.08)
            trim.append(box((bar, 0.05, window_h), (x, recess - 0.05), z + sill))
            trim.append(box((window_w, 0.05, bar), (x, recess - 0.05), z + sill + window_h * 0.6))
    for z in rng.choice(rows, int(rng.integers(0, rows)), replace=False) + 1:
        trim.append(box((width, rng.uniform(0.15, 0.6), 0.2), (0, -0.1), float(z) * storey - 0.1))
    for x in rng.uniform(-width / 2, width / 2, int(rng.integers(0, 4))):
        trim.append(shapes.cylinder(rng.uniform(0.05, 0.35), rows * storey, 24).moved(pose(x, -0.1, 0, 0, 0, 1)))
    panes = quad(np.array([-width / 2, recess, 0]), np.array([width, 0, 0]), np.array([0, 0, rows * storey]))
    glass = Material(paint(rng, str(rng.choice(["gradient", "collage", "noise"])), device=store.device), (0.5,) * 3,
                     0.3, 120, rng.uniform(0.05, 0.4))
    tile = log_uniform(rng, 0.8, 4)
    return [
        store.flat(join(masonry), tile, "bricks" if rng.random() < 0.3 else None),
        store.flat(join(trim), log_uniform(rng, 0.4, 2)),
        Part(panes.textured(1 / bay), glass),
    ]


def _post(rng: Chance, store: Store, x: float) -> Part:
    """Street lamp or sign."""
    height = rng.uniform(2.5, 6)
    pole = shapes.cylinder(rng.uniform(0.03, 0.1), height, 16)
    head = box((rng.uniform(0.3, 0.9), 0.05, rng.uniform(0.2, 0.8)), z=height * 0.85)
    return store.flat(join([pole, head]).moved(pose(x, -rng.uniform(0.8, 5), 0, rng.normal(0, 0.4), 0, 1)), 0.8)


# ---- terrain -----------------------------------------------------------------------------------------------


def terrain(rng: Chance, store: Store) -> Draft:
    """Hills with houses, trees and rocks, seen from the air."""
    size = log_uniform(rng, 60, 220)
    hills = size * log_uniform(rng, 0.01, 0.18)
    land = shapes.rolling(rng, size, hills, 256)
    parts = [store.flat(land, log_uniform(rng, 0.03, 0.3) * size)]
    heights = land.positions[:, 2].view(256, 256).numpy()
    spheres = []
    roofs, walls, crowns = store.material(), store.material(), store.material("noise")
    for _ in range(int(rng.integers(8, 45))):
        x, y = rng.uniform(-0.45 * size, 0.45 * size, 2)
        column, row = (int((t / size + 0.5) * 255) for t in (x, y))
        near = heights[max(0, row - 6) : row + 7, max(0, column - 6) : column + 7]
        z = float(near.min())
        lift = float(heights[row, column]) - z
        if rng.random() < 0.55:
            new, top = _house(rng, x, y, z, lift, (walls, roofs) if rng.random() < 0.5 else
                              (store.material(), store.material()))
        else:
            new, top = _tree(rng, x, y, float(heights[row, column]), crowns if rng.random() < 0.8 else store.material())
        parts += new
        spheres.append(np.array([x, y, z, top]))
    focus = np.array([0, 0, float(heights[96:160, 96:160].mean())])
    top = float(heights.max()) + 25
    sun = _sun(rng, focus, size * 0.6, 1.0)
    layout = Layout(
        focus, size * 0.35, np.array(spheres), np.array([-size, -size, top * 0.6]), np.array([size, size, 4 * size])
    )
    return Draft(parts, [sun], _ambient(rng, rng.uniform(0.35, 0.8)), _sky(rng, store.device), layout)


def _house(
    rng: Chance, x: float, y: float, z: float, lift: float, materials: tuple[Material, Material]
) -> tuple[list[Part], float]:
    w, d, h = rng.uniform(5, 16), rng.uniform(5, 12), rng.uniform(3, 14)
    turn = rng.uniform(0, np.pi)
    body = box((w, d, h + lift)).textured(1 / rng.uniform(2, 6)).moved(pose(x, y, z, turn, 0, 1))
    rise = rng.uniform(0.5, 4)
    ridge = np.array([[-w / 2, 0, rise], [w / 2, 0, rise]])
    eaves = np.array([[-w / 2, -d / 2, 0], [w / 2, -d / 2, 0], [w / 2, d / 2, 0], [-w / 2, d / 2, 0]])
    slopes = [
        quad(eaves[0], eaves[1] - eaves[0], ridge[0] - eaves[0]),
        quad(eaves[2], eaves[3] - eaves[2], ridge[1] - eaves[2]),
        quad(eaves[3], eaves[0] - eaves[3], (ridge[0] - eaves[3])),  # gable, its far half lies inside the roof
        quad(eaves[1], eaves[2] - eaves[1], (ridge[1] - eaves[1])),
    ]
    gables = [_triangle(slopes[2], 0.5), _triangle(slopes[3], 0.5)]
    roof = join(slopes[:2] + gables).textured(1 / rng.uniform(2, 6))
    roof = roof.moved(pose(x, y, z + h + lift, turn, 0, 1))
    return [Part(body, materials[0]), Part(roof, materials[1])], max(w, h + rise)


def _triangle(square: Mesh, apex: float) -> Mesh:
    """The gable in a quad: its base and the point of its upper edge."""
    return Mesh(square.positions[[0, 1, 3]], square.normals[[0, 1, 3]], square.uv[[0, 1, 3]], torch.tensor([[0, 1, 2]]))


def _tree(rng: Chance, x: float, y: float, z: float, material: Material) -> tuple[list[Part], float]:
    height = rng.uniform(3, 12)
    trunk = shapes.cylinder(0.04 * height, height * 0.6, 10).moved(pose(x, y, z - 0.5, 0, 0, 1))
    crown = shapes.blob(rng, 48).moved(pose(x, y, z + height * 0.35, rng.uniform(0, 6), 0, height * rng.uniform(0.4, 0.7)))
    return [Part(join([trunk, crown.textured(0.3)]), material)], height


Composer = Callable[[Chance, Store], Draft]
KINDS: dict[str, Composer] = {"table": table, "room": room, "facade": facade, "terrain": terrain}
_SHARES = [0.55, 0.2, 0.15, 0.1]
