"""Scenes under the sky: streets with facades, and terrain from the air. Metres, z up."""

from __future__ import annotations

import numpy as np
import torch

from gbinet.render import shapes
from gbinet.render.lighting import ambient_light, sky, sun_light
from gbinet.render.mesh import Mesh, join
from gbinet.render.props import Store, placed
from gbinet.render.scenery import Draft, Layout, Light, Material, Part, triple
from gbinet.render.seeding import Generator, log_uniform
from gbinet.render.shapes import box, pose, quad

# ---- facade ------------------------------------------------------------------------------------------------


def facade(rng: Generator, store: Store) -> Draft:
    """A street: the front of a house with recessed windows, a pavement, and things before it."""
    columns, rows = int(rng.integers(3, 9)), int(rng.integers(2, 6))
    bay, storey = rng.uniform(1.8, 3.5), rng.uniform(2.6, 3.6)
    width, height = columns * bay, rows * storey
    parts = _front(rng, store, columns, rows, bay, storey)
    ground = quad(np.array([-60.0, -60, 0]), np.array([120.0, 0, 0]), np.array([0, 75.0, 0]))
    parts.append(store.flat(ground, log_uniform(rng, 1, 4), role="ground"))
    pavement = box((width + 8, 2.5, 0.15), (0, -1.25))
    parts.append(store.flat(pavement, log_uniform(rng, 0.5, 2), role="ground"))
    for side in (-1, 1):  # neighbours
        w, h = rng.uniform(5, 14), rng.uniform(4, 16)
        offset = rng.uniform(-1.5, 3)
        house = box((w, 10, h), (side * (width / 2 + w / 2 + rng.uniform(0, 3)), 5 + offset))
        parts.append(store.flat(house, log_uniform(rng, 1.5, 5), role="wall"))
    spheres = []
    for _ in range(int(rng.integers(3, 12))):
        thing = store.furniture() if rng.random() < 0.7 else store.procedural()
        size = log_uniform(rng, 0.5, 3.0)
        x, y = rng.uniform(-width / 2, width / 2), -rng.uniform(0.6, 7)
        part, sphere = placed(thing, x, y, 0.0, size, rng.uniform(0, 2 * np.pi))
        parts.append(part)
        spheres.append(sphere)
    parts += [_post(rng, store, rng.uniform(-width / 2, width / 2)) for _ in range(int(rng.integers(0, 4)))]
    focus = np.array([0, 0, height * 0.4])
    radius = 0.6 * max(width, height)
    sun = sun_light(rng, focus, radius, 1.0)
    position = np.array(sun.position)
    position[1] = -abs(position[1])  # the front gets the sun
    lights = [Light(triple(position), sun.target, sun.colour, sun.reach)]
    layout = Layout(
        focus,
        radius,
        np.array(spheres).reshape(-1, 4),
        np.array([-width, -25.0, 0.8]),
        np.array([width, -2.0, 14.0]),
        1.0,
    )
    return Draft(parts, lights, ambient_light(rng, rng.uniform(0.3, 0.8)), sky(rng, store.device), layout)


def _front(rng: Generator, store: Store, columns: int, rows: int, bay: float, storey: float) -> list[Part]:
    """Piers and spandrels of masonry around recessed panes, with sills, cornices and pipes."""
    width = columns * bay
    window_w, window_h = bay * rng.uniform(0.35, 0.65), storey * rng.uniform(0.4, 0.7)
    recess, sill = rng.uniform(0.08, 0.4), storey * rng.uniform(0.15, 0.3)
    bar = rng.uniform(0.04, 0.08)
    x, z = (
        g.ravel() for g in np.meshgrid((np.arange(columns) + 0.5) * bay - width / 2, np.arange(rows) * storey)
    )

    def row(w: float, d: float, h: float, y: float, up: float) -> Mesh:
        """One box at every window."""
        feet = np.stack([x, np.full_like(x, y), z + up], -1)
        return shapes.boxes(np.tile([w, d, h], (len(x), 1)), feet)

    edges = np.arange(columns + 1) * bay - width / 2
    inner = np.full(columns + 1, bay - window_w)
    inner[[0, -1]] /= 2
    edges[[0, -1]] += np.array([0.5, -0.5]) * inner[0]
    piers = shapes.boxes(
        np.stack([inner, np.full_like(inner, recess), np.full_like(inner, rows * storey)], -1),
        np.stack([edges, np.full_like(edges, recess / 2), np.zeros_like(edges)], -1),
    )
    top = sill + window_h
    masonry = [
        piers,
        row(window_w, recess, sill, recess / 2, 0),
        row(window_w, recess, storey - top, recess / 2, top),
    ]
    trim = [
        row(window_w * 1.15, 0.18, 0.08, -0.05, sill - 0.08),
        row(bar, 0.05, window_h, recess - 0.05, sill),
        row(window_w, 0.05, bar, recess - 0.05, sill + window_h * 0.6),
    ]
    for level in rng.choice(rows, int(rng.integers(0, rows)), replace=False) + 1:
        trim.append(box((width, rng.uniform(0.15, 0.6), 0.2), (0, -0.1), float(level) * storey - 0.1))
    for at in rng.uniform(-width / 2, width / 2, int(rng.integers(0, 4))):
        trim.append(
            shapes.cylinder(rng.uniform(0.05, 0.35), rows * storey, 24).moved(pose(at, -0.1, 0, 0, 0, 1))
        )
    panes = quad(np.array([-width / 2, recess, 0]), np.array([width, 0, 0]), np.array([0, 0, rows * storey]))
    behind = store.texture(str(rng.choice(["gradient", "collage", "noise"])))
    glass = Material(behind, (0.5, 0.5, 0.5), 0.3, 120, rng.uniform(0.05, 0.4))
    tile = log_uniform(rng, 0.8, 4)
    return [
        store.flat(join(masonry), tile, "bricks" if rng.random() < 0.3 else None, "wall"),
        store.flat(join(trim), log_uniform(rng, 0.4, 2)),
        Part(panes.textured(1 / bay), glass, "pane"),
    ]


def _post(rng: Generator, store: Store, x: float) -> Part:
    """Street lamp or sign."""
    height = rng.uniform(2.5, 6)
    pole = shapes.cylinder(rng.uniform(0.03, 0.1), height, 16)
    head = box((rng.uniform(0.3, 0.9), 0.05, rng.uniform(0.2, 0.8)), z=height * 0.85)
    return store.flat(
        join([pole, head]).moved(pose(x, -rng.uniform(0.8, 5), 0, rng.normal(0, 0.4), 0, 1)), 0.8
    )


# ---- terrain -----------------------------------------------------------------------------------------------


def terrain(rng: Generator, store: Store) -> Draft:
    """Hills with houses, trees and rocks, seen from the air."""
    size = log_uniform(rng, 60, 220)
    hills = size * log_uniform(rng, 0.02, 0.3)
    shape = store.shape("ground", torch.device("cpu"))
    land = shape.mesh.stretched((size, size, hills / shape.extent[2]))
    cover = (
        None if store.has_surfaces else str(rng.choice(["noise", "speckle", "noise", "speckle", "collage"]))
    )
    parts = [store.flat(land.textured(size), log_uniform(rng, 0.03, 0.3) * size, cover, "ground")]
    heights = land.positions[:, 2].view(256, 256).numpy()
    spheres = []
    walls, roofs = ([store.material() for _ in range(3)] for _ in range(2))
    crowns = [store.material("noise"), store.material("speckle"), store.material()]
    for _ in range(int(rng.integers(8, 45))):
        x, y = rng.uniform(-0.45 * size, 0.45 * size, 2)
        column, row = (int((t / size + 0.5) * 255) for t in (x, y))
        z = float(heights[max(0, row - 6) : row + 7, max(0, column - 6) : column + 7].min())
        here = float(heights[row, column])
        if rng.random() < 0.55:
            chosen = (walls[rng.integers(3)], roofs[rng.integers(3)])
            new, reach = _house(rng, x, y, z, here - z, chosen)
        else:
            new, reach = _tree(rng, store, x, y, here, crowns[rng.integers(3)])
        parts += new
        spheres.append(np.array([x, y, z, reach]))
    focus = np.array([0, 0, float(heights[96:160, 96:160].mean())])
    top = float(heights.max()) + 25
    sun = sun_light(rng, focus, size * 0.6, 1.0)
    layout = Layout(
        focus,
        size * 0.35,
        np.array(spheres),
        np.array([-size, -size, top * 0.6]),
        np.array([size, size, 4 * size]),
        4.0,
    )
    return Draft(parts, [sun], ambient_light(rng, rng.uniform(0.35, 0.8)), sky(rng, store.device), layout)


def _house(
    rng: Generator, x: float, y: float, z: float, lift: float, materials: tuple[Material, Material]
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
    ]
    gables = [
        _gable(quad(eaves[3], eaves[0] - eaves[3], ridge[0] - eaves[3])),
        _gable(quad(eaves[1], eaves[2] - eaves[1], ridge[1] - eaves[1])),
    ]
    roof = join(slopes + gables).textured(1 / rng.uniform(2, 6))
    roof = roof.moved(pose(x, y, z + h + lift, turn, 0, 1))
    return [Part(body, materials[0]), Part(roof, materials[1])], max(w, h + rise)


def _gable(leaning: Mesh) -> Mesh:
    """The triangle of a quad's base and its fourth corner."""
    chosen = torch.tensor([0, 1, 3])
    faces = torch.tensor([[0, 1, 2]])
    return Mesh(leaning.positions[chosen], leaning.normals[chosen], leaning.uv[chosen], faces)


def _tree(
    rng: Generator, store: Store, x: float, y: float, z: float, material: Material
) -> tuple[list[Part], float]:
    height = rng.uniform(3, 12)
    trunk = shapes.cylinder(0.04 * height, height * 0.6, 10).moved(pose(x, y, z - 0.5, 0, 0, 1))
    crown = store.shape("crown").mesh.textured(log_uniform(rng, 1, 4))
    crown = crown.moved(pose(x, y, z + height * 0.35, rng.uniform(0, 6), 0, height * rng.uniform(0.4, 0.7)))
    return [Part(trunk, material), Part(crown, material)], height
