"""Procedural shapes. Each stands on z = 0 with z up, about one unit across, unless its size is an argument.

Texture coordinates are lengths on the surface in the shape's own unit wherever that is possible, so that a
texture keeps its scale and proportions when shapes of several sizes share it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gbinet.render.mesh import Mesh, join, vertex_normals
from gbinet.render.paint import octave_noise
from gbinet.render.seeding import Generator, log_uniform


def sheet(points: Tensor, uv: Tensor, welded: Tensor | None = None) -> Mesh:
    """Smooth surface through a grid of points [R, C, 3] with texture coordinates [R, C, 2].

    welded [R, C]: equal for points at the same position (seams, poles), which share one normal.
    """
    rows, columns = points.shape[:2]
    index = torch.arange(rows * columns).view(rows, columns)
    a, b, c, d = index[:-1, :-1], index[:-1, 1:], index[1:, 1:], index[1:, :-1]
    faces = torch.stack([torch.stack([a, b, c], -1), torch.stack([a, c, d], -1)]).view(-1, 3)
    flat = points.reshape(-1, 3)
    if welded is not None:
        welded = welded.reshape(-1)
        a, b, c = welded[faces].unbind(1)
        faces = faces[(a != b) & (b != c) & (c != a)]  # at poles half of the triangles have no area
    normals = vertex_normals(flat, faces, welded)
    return Mesh(flat, normals, uv.reshape(-1, 2), faces)


def quad(corner: np.ndarray, along: np.ndarray, up: np.ndarray) -> Mesh:
    """Flat rectangle from a corner and two edge vectors; uv are lengths."""
    points = np.stack([corner, corner + along, corner + along + up, corner + up]).astype(np.float32)
    width, height = float(np.linalg.norm(along)), float(np.linalg.norm(up))
    normal = np.cross(along, up)
    normal = (normal / max(float(np.linalg.norm(normal)), 1e-12)).astype(np.float32)
    uv = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    return Mesh(
        torch.from_numpy(points),
        torch.from_numpy(np.tile(normal, (4, 1))),
        torch.from_numpy(uv),
        torch.tensor([[0, 1, 2], [0, 2, 3]]),
    )


# The six sides of the unit box on z = 0: a corner, the edge along u, the edge along v.
_SIDES = np.array(
    [
        [[-0.5, -0.5, 0], [1, 0, 0], [0, 0, 1]],
        [[0.5, -0.5, 0], [0, 1, 0], [0, 0, 1]],
        [[0.5, 0.5, 0], [-1, 0, 0], [0, 0, 1]],
        [[-0.5, 0.5, 0], [0, -1, 0], [0, 0, 1]],
        [[-0.5, -0.5, 1], [1, 0, 0], [0, 1, 0]],
        [[-0.5, 0.5, 0], [1, 0, 0], [0, -1, 0]],
    ]
)


def boxes(sizes: np.ndarray, feet: np.ndarray) -> Mesh:
    """Axis-parallel boxes of sizes [n, 3]; feet [n, 3] are the middles of their undersides."""
    count = len(sizes)
    edges = _SIDES[None] * sizes[:, None, None, :]  # [n, 6, 3 (corner, along, up), 3]
    corner, along, up = edges[:, :, 0] + feet[:, None], edges[:, :, 1], edges[:, :, 2]
    points = np.stack([corner, corner + along, corner + along + up, corner + up], axis=2)  # [n, 6, 4, 3]
    normals = np.broadcast_to(np.cross(_SIDES[:, 1], _SIDES[:, 2])[None, :, None], points.shape)
    length, height = np.linalg.norm(along, axis=-1), np.linalg.norm(up, axis=-1)  # [n, 6]
    start = np.broadcast_to(np.arange(6) * 0.37, length.shape)  # another part of the texture on each side
    zero = np.zeros_like(length)
    u = np.stack([start, start + length, start + length, start], -1)
    v = np.stack([zero, zero, height, height], -1)
    quads = np.arange(count * 6)[:, None] * 4
    faces = np.concatenate([quads + np.array([0, 1, 2]), quads + np.array([0, 2, 3])])
    return Mesh(
        torch.from_numpy(points.reshape(-1, 3).astype(np.float32)),
        torch.from_numpy(normals.reshape(-1, 3).astype(np.float32)),
        torch.from_numpy(np.stack([u, v], -1).reshape(-1, 2).astype(np.float32)),
        torch.from_numpy(faces.astype(np.int64)),
    )


def box(size: tuple[float, float, float], centre: tuple[float, float] = (0, 0), z: float = 0) -> Mesh:
    """One axis-parallel box that stands at height z over the given centre."""
    return boxes(np.array([size], float), np.array([[*centre, z]], float))


def revolve(profile: np.ndarray, segments: int = 64) -> Mesh:
    """Solid of revolution about z from a profile [R, 2] of (radius, height)."""
    angle = np.linspace(0, 2 * np.pi, segments + 1)
    angle[-1] = 0  # the seam closes exactly
    ring = np.stack([np.cos(angle), np.sin(angle)], -1)  # [S + 1, 2]
    points = np.empty((segments + 1, len(profile), 3), np.float32)
    points[..., :2] = ring[:, None] * profile[None, :, :1]
    points[..., 2] = profile[None, :, 1]
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(profile, axis=0), axis=1))])
    girth = 2 * np.pi * max(float(profile[:, 0].mean()), 1e-3)
    uv = np.empty((segments + 1, len(profile), 2), np.float32)
    uv[..., 0] = np.linspace(0, girth, segments + 1)[:, None]
    uv[..., 1] = along
    return sheet(torch.from_numpy(points), torch.from_numpy(uv), _turned_weld(profile, segments))


def _turned_weld(profile: np.ndarray, segments: int) -> Tensor:
    """Which points of a solid of revolution coincide: seam, poles, ends of a closed profile."""
    row = np.arange(segments + 1)[:, None] % segments
    column = np.arange(len(profile))[None, :]
    row = np.where(profile[None, :, 0] == 0, 0, row)
    if np.array_equal(profile[0], profile[-1]):
        column = column % (len(profile) - 1)
    return torch.from_numpy(row * len(profile) + column)


def sphere(radius: float, segments: int = 64) -> Mesh:
    t = np.linspace(-np.pi / 2, np.pi / 2, segments // 2 + 1)
    radii = radius * np.cos(t)
    radii[[0, -1]] = 0
    return revolve(np.stack([radii, radius * (1 + np.sin(t))], -1), segments)


def cylinder(radius: float, height: float, segments: int = 48) -> Mesh:
    wall = revolve(np.array([[radius, 0.0], [radius, height]]), segments)
    lid = revolve(np.array([[radius, height], [0.0, height]]), segments)
    floor = revolve(np.array([[0.0, 0.0], [radius, 0.0]]), segments)
    return join([wall, lid, floor])


def torus(radius: float, thickness: float, segments: int = 64) -> Mesh:
    t = np.linspace(0, 2 * np.pi, segments // 2 + 1)
    t[-1] = 0
    profile = np.stack([radius + thickness * np.cos(t), thickness * (1 + np.sin(t))], -1)
    return revolve(profile, segments)


def vase(rng: Generator) -> Mesh:
    """Bottle, vase, bowl or lamp: a smooth random profile turned about z."""
    knots = rng.uniform(0.08, 0.4, 6)
    t = np.linspace(0, 1, 48)
    radii = np.interp(t, np.linspace(0, 1, 6), knots)
    radii = np.convolve(np.pad(radii, 4, "edge"), np.ones(9) / 9, "valid")
    height = rng.uniform(0.5, 1.0)
    outside = np.stack([radii, t * height], -1)
    inside = np.stack([radii[::-1] - 0.03, np.maximum(t[::-1] * height, 0.03)], -1)
    profile = np.concatenate([[[0, 0]], outside, inside, [[0, 0.03]]])
    profile[:, 0] = profile[:, 0].clip(0)
    return revolve(profile, 72)


def blob(rng: Generator, segments: int = 96) -> Mesh:
    """Stone or fruit: a sphere displaced by noise."""
    ball = sphere(0.5, segments)
    noise = octave_noise(rng, 128, "cpu", int(rng.choice([2, 4])), 5, rng.uniform(0.3, 0.6))
    centred = ball.positions - ball.positions.new_tensor([0, 0, 0.5])
    # three planar look-ups blended by direction: no seam, no pole
    weights = centred.abs() / centred.abs().sum(-1, keepdim=True).clamp_min(1e-9)
    pixel = ((centred + 0.5) * 127).clamp(0, 127).long()
    x, y, z = pixel.unbind(-1)
    bump = weights[:, 0] * noise[y, z] + weights[:, 1] * noise[z, x] + weights[:, 2] * noise[x, y]
    points = centred * (1 + rng.uniform(0.04, 0.16) * bump[:, None].clamp(-2, 2))
    points = points - points.new_tensor([0, 0, 1]) * points[:, 2].min()
    rows, columns = segments + 1, segments // 2 + 1
    poles = np.zeros((columns, 2))
    poles[1:-1] = np.arange(1, columns - 1)[:, None]  # radius zero at both ends only
    poles[-1, 1] = columns
    weld = _turned_weld(poles, segments)
    return sheet(points.view(rows, columns, 3), ball.uv.view(rows, columns, 2), weld)


def height_field(heights: Tensor, width: float, depth: float) -> Mesh:
    """Terrain or crumpled cloth: heights [R, C] over a width x depth rectangle about the origin."""
    rows, columns = heights.shape
    x = torch.linspace(-width / 2, width / 2, columns)
    y = torch.linspace(-depth / 2, depth / 2, rows)
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    points = torch.stack([grid_x, grid_y, heights], -1)
    uv = torch.stack([grid_x + width / 2, grid_y + depth / 2], -1)
    return sheet(points, uv)


def rolling(rng: Generator, size: float, height: float, cells: int = 160) -> Mesh:
    """Height field of noise, size x size, with hills of the given height."""
    noise = octave_noise(rng, 256, "cpu", int(rng.choice([2, 4])), 5, rng.uniform(0.3, 0.55))
    heights = torch.nn.functional.interpolate(noise[None, None], size=(cells, cells), mode="bilinear")[0, 0]
    return height_field(heights * (0.5 * height), size, size)


def rods(rng: Generator) -> Mesh:
    """A bundle of thin rods: fence, twigs, cables."""
    parts = []
    for _ in range(int(rng.integers(3, 12))):
        rod = cylinder(rng.uniform(0.006, 0.025), rng.uniform(0.4, 1.0), 10)
        tilt, turn = rng.normal(0, 0.3), rng.uniform(0, 2 * np.pi)
        parts.append(rod.moved(pose(rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4), 0, turn, tilt, 1)))
    return join(parts)


def plates(rng: Generator) -> Mesh:
    """Thin plates at several angles: books, cards, signs."""
    parts = []
    for _ in range(int(rng.integers(1, 6))):
        thin = rng.uniform(0.005, 0.03)
        plate = box((rng.uniform(0.3, 0.8), thin, rng.uniform(0.3, 0.9)))
        turn, tilt = rng.uniform(0, 2 * np.pi), rng.uniform(-0.3, 0.3)
        parts.append(plate.moved(pose(rng.uniform(-0.3, 0.3), rng.uniform(-0.3, 0.3), 0, turn, tilt, 1)))
    return join(parts)


def stairs(rng: Generator) -> Mesh:
    steps = int(rng.integers(3, 10))
    run, rise, width = 1.0 / steps, rng.uniform(0.4, 1.0) / steps, rng.uniform(0.4, 1.0)
    parts = [box((run, width, rise * (i + 1)), (-0.5 + run * (i + 0.5), 0)) for i in range(steps)]
    return join(parts)


def frame(rng: Generator) -> Mesh:
    """Table, stool or shelf: boards on posts."""
    w, d, h, t = rng.uniform(0.5, 1), rng.uniform(0.4, 0.8), rng.uniform(0.4, 1), rng.uniform(0.02, 0.06)
    posts = [box((t, t, h), (sx * (w - t) / 2, sy * (d - t) / 2)) for sx in (-1, 1) for sy in (-1, 1)]
    levels = np.linspace(h, 0.1, int(rng.integers(1, 5)))
    return join(posts + [box((w, d, t), z=float(z)) for z in levels])


def tower(rng: Generator) -> Mesh:
    """Random composition: boxes, cylinders and balls stacked on each other."""
    parts, z = [], 0.0
    for _ in range(int(rng.integers(2, 5))):
        w = rng.uniform(0.15, 0.6)
        h = rng.uniform(0.1, 0.4)
        kind = rng.integers(0, 3)
        turn = rng.uniform(0, np.pi)
        if kind == 0:
            part = box((w, w * rng.uniform(0.5, 1), h))
        elif kind == 1:
            part = cylinder(w / 2, h)
        else:
            h = w
            part = sphere(w / 2, 48)
        parts.append(part.moved(pose(0, 0, z, turn, 0, 1)))
        z += h
    return join(parts)


def pose(x: float, y: float, z: float, turn: float, tilt: float, scale: float) -> Tensor:
    """[3, 4] transform: tilt about x, then turn about z, scale and move."""
    ct, st, cu, su = np.cos(tilt), np.sin(tilt), np.cos(turn), np.sin(turn)
    rotation = np.array([[cu, -su, 0], [su, cu, 0], [0, 0, 1]]) @ np.array(
        [[1, 0, 0], [0, ct, -st], [0, st, ct]]
    )
    matrix = np.concatenate([rotation * scale, [[x], [y], [z]]], axis=1).astype(np.float32)
    return torch.from_numpy(matrix)


def _proportions(rng: Generator) -> tuple[float, float, float]:
    return rng.uniform(0.3, 1), rng.uniform(0.3, 1), log_uniform(rng, 0.1, 1)


SHAPES: dict[str, Callable[[Generator], Mesh]] = {
    "box": lambda rng: box(_proportions(rng)),
    "sphere": lambda rng: sphere(rng.uniform(0.25, 0.5)),
    "cylinder": lambda rng: cylinder(rng.uniform(0.1, 0.45), rng.uniform(0.2, 1)),
    "torus": lambda rng: torus(rng.uniform(0.2, 0.4), rng.uniform(0.05, 0.15)),
    "vase": vase,
    "blob": blob,
    "hill": lambda rng: rolling(rng, 1.0, rng.uniform(0.05, 0.3), 96),
    "rods": rods,
    "plates": plates,
    "stairs": stairs,
    "frame": frame,
    "tower": tower,
    "ground": lambda rng: rolling(rng, 1.0, 0.1, 256),
    "crown": lambda rng: blob(rng, 40),
}
