"""Thin shapes: wires, plants, brushes, railings, lattices. As in `shapes`, about one unit high on z = 0."""

from __future__ import annotations

import numpy as np
import torch

from gbinet.render.mesh import Mesh, join, vertex_normals
from gbinet.render.seeding import Generator
from gbinet.render.shapes import box, boxes, cylinder, pose

SIDES = 5  # of a tube


def tubes(paths: np.ndarray, radius: float | np.ndarray) -> Mesh:
    """Tubes along lines of points [n, k, 3] that are nearly straight, of one radius or of n radii."""
    count, steps = paths.shape[:2]
    along = paths[:, -1] - paths[:, 0]
    along = along / np.linalg.norm(along, axis=-1, keepdims=True)
    u = np.cross(along, np.eye(3)[np.abs(along).argmin(-1)])
    u = u / np.linalg.norm(u, axis=-1, keepdims=True)
    v = np.cross(along, u)
    turn = np.linspace(0, 2 * np.pi, SIDES + 1)
    turn[-1] = 0
    radii = np.broadcast_to(np.asarray(radius, dtype=float), (count,))[:, None]
    ring = np.cos(turn)[:, None] * u[:, None] + np.sin(turn)[:, None] * v[:, None]  # [n, S + 1, 3]
    points = paths[:, :, None] + (radii[..., None] * ring)[:, None]  # [n, k, S + 1, 3]
    uv = np.zeros((count, steps, SIDES + 1, 2))
    uv[..., 0] = (radii * np.linspace(0, 2 * np.pi, SIDES + 1))[:, None]
    uv[:, 1:, :, 1] = np.linalg.norm(np.diff(paths, axis=1), axis=-1).cumsum(1)[..., None]
    index = np.arange(points[..., 0].size).reshape(points.shape[:3])
    a, b, c, d = index[:, :-1, :-1], index[:, :-1, 1:], index[:, 1:, 1:], index[:, 1:, :-1]
    corners = np.stack([np.stack([a, b, c], -1), np.stack([a, c, d], -1)]).reshape(-1, 3)
    welded = index.copy()
    welded[..., -1] = index[..., 0]  # the seam
    positions, faces = torch.from_numpy(points.reshape(-1, 3)).float(), torch.from_numpy(corners)
    normals = vertex_normals(positions, faces, torch.from_numpy(welded.reshape(-1)))
    return Mesh(positions, normals, torch.from_numpy(uv.reshape(-1, 2)).float(), faces)


def wires(rng: Generator) -> Mesh:
    """Sagging wires between two posts."""
    t = np.linspace(0, 1, 17)
    height = rng.uniform(0.5, 1.0)
    posts = [cylinder(rng.uniform(0.008, 0.02), height, 8).moved(pose(x, 0, 0, 0, 0, 1)) for x in (-0.5, 0.5)]
    count = int(rng.integers(2, 7))
    sag, level = rng.uniform(0, 0.12, (count, 1)), height * rng.uniform(0.55, 1, (count, 1))
    across = np.broadcast_to(rng.normal(0, 0.04, (count, 1)), (count, len(t)))
    lines = np.stack([np.broadcast_to(t - 0.5, across.shape), across, level - sag * 4 * t * (1 - t)], -1)
    return join([*posts, tubes(lines, rng.uniform(0.002, 0.006, count))])


def twigs(rng: Generator) -> Mesh:
    """Stems with leaves: a house plant, reed, or a branch."""
    count, width = int(rng.integers(3, 12)), rng.uniform(0.15, 0.45)
    t = np.linspace(0, 1, 9)
    around, lean, height, wave = (
        rng.uniform(low, high, (count, 1)) for low, high in ((0, 2 * np.pi), (0, width), (0.5, 1), (2, 7))
    )
    out = lean * t**1.5 + 0.02 * np.sin(wave * t)
    stems = np.stack([np.cos(around) * out, np.sin(around) * out, height * t], -1)  # [n, 9, 3]
    parts = [tubes(stems, rng.uniform(0.003, 0.009, count))]
    if rng.random() < 0.8:
        number = int(rng.integers(4, 14)) * count  # leaves, between two points of a stem each
        stem, place, share = (
            rng.integers(0, count, number),
            rng.integers(1, 8, number),
            rng.random((number, 1)),
        )
        parts.append(_leaves(rng, stems[stem, place] * (1 - share) + stems[stem, place + 1] * share))
    return join(parts)


def _leaves(rng: Generator, feet: np.ndarray) -> Mesh:
    """A bent diamond at each foot [n, 3]."""
    n = len(feet)
    around, up = rng.uniform(0, 2 * np.pi, n), rng.uniform(-0.4, 0.9, n)
    along = np.stack([np.cos(around) * np.cos(up), np.sin(around) * np.cos(up), np.sin(up)], -1)
    side = np.stack([-np.sin(around), np.cos(around), rng.normal(0, 0.4, n)], -1)
    length = rng.uniform(0.06, 0.22) * rng.uniform(0.6, 1.2, n)[:, None]
    half = length * rng.uniform(0.08, 0.35)
    middle = feet + 0.5 * length * along
    droop = length * np.array([0, 0, rng.uniform(0, 0.25)])
    rows = np.stack([feet, middle - half * side, middle + half * side, feet + length * along - droop], 1)
    points = torch.from_numpy(rows.reshape(-1, 3)).float()  # [4 n, 3]
    faces = torch.tensor([[0, 1, 2], [1, 3, 2]])[None] + 4 * torch.arange(n)[:, None, None]
    a, b, c = points.view(n, 4, 3)[:, :3].unbind(1)
    normals = torch.linalg.cross(b - a, c - a)
    normals = (normals / normals.norm(dim=-1, keepdim=True).clamp_min(1e-12)).repeat_interleave(4, 0)
    size = torch.from_numpy(length).float()
    uv = torch.tensor([[0.5, 0.0], [0.0, 0.5], [1.0, 0.5], [0.5, 1.0]])[None] * size[:, None]
    return Mesh(points, normals, uv.reshape(-1, 2), faces.view(-1, 3))


def brush(rng: Generator) -> Mesh:
    """A handle with bristles: brush, broom, paintbrushes in a cup."""
    handle = cylinder(rng.uniform(0.015, 0.04), 0.55, 12)
    reach, spread = rng.uniform(0.2, 0.45), rng.uniform(0.02, 0.2)
    parts = [handle, box((0.12, rng.uniform(0.03, 0.12), 0.08), z=0.5)]
    count = int(rng.integers(20, 70))
    starts = np.stack(
        [rng.uniform(-0.05, 0.05, count), rng.uniform(-0.03, 0.03, count), np.full(count, 0.55)], -1
    )
    ends = starts + np.concatenate([rng.normal(0, spread, (count, 2)), np.zeros((count, 1))], 1)
    ends[:, 2] += 0.03 + reach * rng.uniform(0.8, 1, count)
    return join([*parts, tubes(np.stack([starts, ends], 1), rng.uniform(0.002, 0.006))])


def railing(rng: Generator) -> Mesh:
    """Upright bars between two rails."""
    count, bar = int(rng.integers(6, 24)), rng.uniform(0.004, 0.014)
    height, rail = rng.uniform(0.4, 1.0), rng.uniform(0.01, 0.03)
    x = np.linspace(-0.5, 0.5, count)
    sizes = np.tile([bar, bar, height], (count, 1))
    feet = np.stack([x, np.zeros(count), np.zeros(count)], -1)
    rails = [box((1.0, rail, rail), z=z * height) for z in (rng.uniform(0.05, 0.2), 1.0)]
    return join([boxes(sizes, feet), *rails])


def lattice(rng: Generator) -> Mesh:
    """A grid of thin bars: wire fence, basket, grille."""
    columns, rows, bar = int(rng.integers(8, 28)), int(rng.integers(5, 20)), rng.uniform(0.003, 0.012)
    height = rng.uniform(0.4, 1.0)
    x, z = np.linspace(-0.5, 0.5, columns), np.linspace(0, height, rows)
    upright = boxes(
        np.tile([bar, bar, height], (columns, 1)),
        np.stack([x, np.zeros(columns), np.zeros(columns)], -1),
    )
    across = boxes(
        np.tile([1.0, bar, bar], (rows, 1)),
        np.stack([np.zeros(rows), np.full(rows, bar), z], -1),
    )
    return join([upright, across])


THIN_SHAPES = {"wires": wires, "twigs": twigs, "brush": brush, "railing": railing, "lattice": lattice}
