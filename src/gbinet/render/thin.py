"""Thin shapes: wires, plants, brushes, railings, lattices. As in `shapes`, about one unit high on z = 0."""

from __future__ import annotations

import numpy as np
import torch

from gbinet.render.chance import Chance
from gbinet.render.mesh import Mesh, join
from gbinet.render.shapes import box, boxes, cylinder, pose, sheet

SIDES = 5  # of a tube


def tube(path: np.ndarray, radius: float) -> Mesh:
    """A tube along points [N, 3] that lie nearly on a line."""
    along = path[-1] - path[0]
    along = along / np.linalg.norm(along)
    other = np.eye(3)[np.abs(along).argmin()]
    u = np.cross(along, other)
    u = u / np.linalg.norm(u)
    v = np.cross(along, u)
    turn = np.linspace(0, 2 * np.pi, SIDES + 1)
    turn[-1] = 0
    ring = radius * (np.cos(turn)[:, None] * u + np.sin(turn)[:, None] * v)  # [S + 1, 3]
    points = path[:, None] + ring[None]
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    uv = np.empty((len(path), SIDES + 1, 2))
    uv[..., 0] = np.linspace(0, 2 * np.pi * radius, SIDES + 1)
    uv[..., 1] = np.concatenate([[0], steps.cumsum()])[:, None]
    return sheet(torch.from_numpy(points).float(), torch.from_numpy(uv).float())


def wires(rng: Chance) -> Mesh:
    """Sagging wires between two posts."""
    t = np.linspace(0, 1, 17)
    height = rng.uniform(0.5, 1.0)
    parts = [cylinder(rng.uniform(0.008, 0.02), height, 8).moved(pose(x, 0, 0, 0, 0, 1)) for x in (-0.5, 0.5)]
    for _ in range(int(rng.integers(2, 7))):
        sag, z, y = rng.uniform(0.0, 0.12), height * rng.uniform(0.55, 1.0), rng.normal(0, 0.04)
        drop = z - sag * 4 * t * (1 - t)
        parts.append(tube(np.stack([t - 0.5, np.full_like(t, y), drop], -1), rng.uniform(0.002, 0.006)))
    return join(parts)


def twigs(rng: Chance) -> Mesh:
    """Stems with leaves: a house plant, reed, or a branch."""
    parts = []
    count, leafy = int(rng.integers(3, 12)), rng.random() < 0.8
    width = rng.uniform(0.15, 0.45)
    t = np.linspace(0, 1, 9)
    for _ in range(count):
        around, lean, height = rng.uniform(0, 2 * np.pi), rng.uniform(0, width), rng.uniform(0.5, 1)
        out = lean * t**1.5 + 0.02 * np.sin(rng.uniform(2, 7) * t)
        path = np.stack([np.cos(around) * out, np.sin(around) * out, height * t], -1)
        parts.append(tube(path, rng.uniform(0.003, 0.009)))
        if leafy:
            at = rng.uniform(0.2, 1, int(rng.integers(4, 14)))
            feet = np.stack([np.interp(at, t, path[:, axis]) for axis in range(3)], -1)
            parts.append(_leaves(rng, feet))
    return join(parts)


def _leaves(rng: Chance, feet: np.ndarray) -> Mesh:
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


def brush(rng: Chance) -> Mesh:
    """A handle with bristles: brush, broom, paintbrushes in a cup."""
    handle = cylinder(rng.uniform(0.015, 0.04), 0.55, 12)
    reach, spread = rng.uniform(0.2, 0.45), rng.uniform(0.02, 0.2)
    parts = [handle, box((0.12, rng.uniform(0.03, 0.12), 0.08), z=0.5)]
    radius = rng.uniform(0.002, 0.006)
    for _ in range(int(rng.integers(20, 70))):
        x, y = rng.uniform(-0.05, 0.05), rng.uniform(-0.03, 0.03)
        away = rng.normal(0, spread, 2)
        end = [x + away[0], y + away[1], 0.58 + reach * rng.uniform(0.8, 1)]
        parts.append(tube(np.array([[x, y, 0.55], end]), radius))
    return join(parts)


def railing(rng: Chance) -> Mesh:
    """Upright bars between two rails."""
    count, bar = int(rng.integers(6, 24)), rng.uniform(0.004, 0.014)
    height, rail = rng.uniform(0.4, 1.0), rng.uniform(0.01, 0.03)
    x = np.linspace(-0.5, 0.5, count)
    sizes = np.tile([bar, bar, height], (count, 1))
    feet = np.stack([x, np.zeros(count), np.zeros(count)], -1)
    rails = [box((1.0, rail, rail), z=z * height) for z in (rng.uniform(0.05, 0.2), 1.0)]
    return join([boxes(sizes, feet), *rails])


def lattice(rng: Chance) -> Mesh:
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
