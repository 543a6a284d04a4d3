"""Procedural textures: each kind is a function of a random generator that gives an image [3, S, S]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.render.seeding import Generator, log_uniform
from gbinet.render.texture import Texture, make_texture

Device = torch.device | str


def paint(rng: Generator, kind: str | None = None, size: int = 512, device: Device = "cpu") -> Texture:
    """A random texture; kind is one of PAINTERS."""
    name = kind or str(rng.choice(list(PAINTERS), p=SHARES))
    return make_texture(PAINTERS[name](rng, size, device))


# ---- ingredients -------------------------------------------------------------------------------------------


def lattice_noise(rng: Generator, size: int, cells: int, device: Device) -> Tensor:
    """Smooth noise [S, S] of about unit variance that repeats at its borders."""
    grid = torch.from_numpy(rng.standard_normal((cells, cells), dtype=np.float32)).to(device)
    padded = F.pad(grid[None, None], (2, 2, 2, 2), mode="circular" if cells >= 2 else "replicate")
    step = size // cells
    fine = F.interpolate(padded, scale_factor=float(step), mode="bicubic", align_corners=False)[0, 0]
    return fine[2 * step : 2 * step + size, 2 * step : 2 * step + size]


def octave_noise(
    rng: Generator, size: int, device: Device, first: int = 4, octaves: int = 6, roughness: float = 0.6
) -> Tensor:
    """Sum of octaves of lattice noise, scaled to unit deviation, [S, S]."""
    total = torch.zeros(size, size, device=device)
    for i in range(octaves):
        cells = first << i
        if cells > size:
            break
        total = total + roughness**i * lattice_noise(rng, size, cells, device)
    return (total - total.mean()) / total.std().clamp_min(1e-6)


# What most things are made of: grey, warm white, wood, earth, brick, leaf, sky; and anything (None).
_HUES: list[tuple[float, float, float] | None] = [
    (1.0, 1.0, 1.0),
    (1.12, 1.0, 0.86),
    (1.2, 0.98, 0.72),
    (1.15, 0.95, 0.8),
    (1.35, 0.85, 0.7),
    (0.9, 1.08, 0.72),
    (0.78, 0.95, 1.22),
    None,
]
_HUE_SHARES = np.array([0.24, 0.14, 0.12, 0.1, 0.08, 0.08, 0.08, 0.16])


def colour(rng: Generator, device: Device, low: float = 0.05, high: float = 0.95) -> Tensor:
    """A colour [3, 1, 1]: any brightness, mostly of a natural hue."""
    hue = _HUES[int(rng.choice(len(_HUES), p=_HUE_SHARES))]
    tint = np.exp(rng.normal(0, 0.35, 3)) if hue is None else np.array(hue) ** rng.uniform(0.3, 1.6)
    rgb = np.clip(rng.uniform(low, high) * tint / tint.mean(), 0.02, 0.98).astype(np.float32)
    return torch.from_numpy(rgb).to(device).view(3, 1, 1)


def mix(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    return first + (second - first) * weight


def unit_grid(size: int, device: Device) -> tuple[Tensor, Tensor]:
    """Coordinates (x, y) in [0, 1), [S, S] each."""
    t = torch.arange(size, device=device, dtype=torch.float32) / size
    return t[None, :].expand(size, size), t[:, None].expand(size, size)


def weathered(rng: Generator, image: Tensor, amount: float) -> Tensor:
    """Blotches and fine grain on top of an image [3, S, S]."""
    noise = octave_noise(rng, image.shape[-1], image.device, 4, 8, rng.uniform(0.5, 0.95))
    return image * (1 + amount * noise)


# ---- kinds -------------------------------------------------------------------------------------------------


def noise(rng: Generator, size: int, device: Device) -> Tensor:
    """Stone, plaster, dirt: two or three colours mixed by multi-octave noise."""
    first = int(rng.choice([2, 4, 8, 16]))
    weight = octave_noise(rng, size, device, first, 8, rng.uniform(0.5, 0.9))
    image = mix(colour(rng, device), colour(rng, device), torch.sigmoid(weight * rng.uniform(0.8, 4)))
    if rng.random() < 0.6:
        veins = octave_noise(rng, size, device, first, 6, 0.5).abs()
        image = mix(colour(rng, device), image, (veins * rng.uniform(1, 6)).clamp(0, 1))
    return weathered(rng, image, rng.uniform(0.02, 0.15))


def bricks(rng: Generator, size: int, device: Device) -> Tensor:
    rows = int(rng.choice([4, 8, 12, 16, 24]))
    columns = max(2, int(rows * rng.choice([0.33, 0.5, 1.0])))
    x, y = unit_grid(size, device)
    row = (y * rows).floor()
    shift = 0.5 if rng.random() < 0.8 else 0.0
    across = (x * columns + shift * (row % 2)) % columns
    column = across.floor()
    mortar = rng.uniform(0.02, 0.1)
    edge_x = (across - column - 0.5).abs()
    edge_y = (y * rows - row - 0.5).abs()
    wobble = 0.015 * octave_noise(rng, size, device, 16, 5)
    inside = torch.maximum(edge_x * rows / max(columns, rows), edge_y) + wobble < 0.5 - mortar
    shades = rng.normal(1, rng.uniform(0.03, 0.25), (rows, columns)).astype(np.float32)
    shade = torch.from_numpy(shades).to(device)[row.long(), column.long() % columns]
    image = mix(colour(rng, device), colour(rng, device) * shade, inside.float())
    return weathered(rng, image, rng.uniform(0.05, 0.2))


def glyphs(rng: Generator, size: int, device: Device) -> Tensor:
    """Lines of letter-like marks in a few sizes, as on packages, posters and newspapers."""
    page = torch.zeros(size, size, device=device)
    top = 0
    while top < size:
        pixel = int(rng.choice([1, 1, 2, 2, 3, 4, 8]))  # one dot of a letter
        height = 7 * pixel
        letters = size // (6 * pixel)
        marks = (rng.random((letters, 5, 4)) < 0.45).astype(np.float32)
        marks[:, :, 0] = np.maximum(marks[:, :, 0], rng.random((letters, 1)) < 0.6)  # upright strokes
        marks[:, 0, :] = np.maximum(marks[:, 0, :], rng.random((letters, 1)) < 0.4)  # bars
        marks *= (rng.random((letters, 1, 1)) > 0.16).astype(np.float32)  # gaps between words
        cell = np.zeros((letters, 7, 6), np.float32)
        cell[:, 1:6, 1:5] = marks
        line = torch.from_numpy(cell.transpose(1, 0, 2).reshape(7, -1)).to(device)
        line = line.repeat_interleave(pixel, 0).repeat_interleave(pixel, 1)
        bottom = min(size, top + height)
        page[top:bottom, : line.shape[1]] = line[: bottom - top]
        top += height + int(rng.integers(0, 3 * pixel + 1)) + (height if rng.random() < 0.1 else 0)
    image = mix(colour(rng, device, 0.5), colour(rng, device, 0.02, 0.4), page)
    for _ in range(int(rng.integers(0, 4))):  # panels behind or over the text
        x0, y0 = rng.integers(0, size, 2)
        w, h = rng.integers(size // 8, size // 2, 2)
        patch = image[:, y0 : y0 + h, x0 : x0 + w]
        image[:, y0 : y0 + h, x0 : x0 + w] = mix(
            patch, colour(rng, device), torch.tensor(rng.uniform(0.4, 1))
        )
    return weathered(rng, image, rng.uniform(0, 0.06))


def grating(rng: Generator, size: int, device: Device) -> Tensor:
    """Stripes, checks and weaves: repetitive, the hard case for matching."""
    x, y = unit_grid(size, device)
    a, b = int(rng.integers(0, 25)), int(rng.integers(1, 33))
    sharp = log_uniform(rng, 0.5, 20)
    wave = torch.sin(2 * np.pi * (a * x + b * y) + 0.3 * octave_noise(rng, size, device, 4, 3))
    if rng.random() < 0.5:
        wave = wave * torch.sin(2 * np.pi * (b * x - a * y))
    image = mix(colour(rng, device), colour(rng, device), torch.sigmoid(wave * sharp))
    return weathered(rng, image, rng.uniform(0, 0.12))


def gradient(rng: Generator, size: int, device: Device) -> Tensor:
    """Soft changes of colour only: hardly anything to match."""
    weight = torch.sigmoid(octave_noise(rng, size, device, 2, 2, 0.5) * rng.uniform(0.5, 2))
    image = mix(colour(rng, device), colour(rng, device), weight)
    return weathered(rng, image, rng.uniform(0, 0.02))


def blank(rng: Generator, size: int, device: Device) -> Tensor:
    """A painted wall or a white plate: one colour with the faintest structure."""
    flat = colour(rng, device, 0.3, 0.95).expand(3, size, size)
    return weathered(rng, flat, rng.uniform(0.002, 0.025))


def wood(rng: Generator, size: int, device: Device) -> Tensor:
    """Stretched noise along one axis, in planks."""
    fine = octave_noise(rng, size, device, 32, 4, 0.8)
    stretched = F.interpolate(fine[None, None, :, ::16], size=(size, size), mode="bilinear")[0, 0]
    rings = torch.sin(
        stretched * rng.uniform(0.5, 1.5) + rng.uniform(0, 1.5) * octave_noise(rng, size, device, 4, 3)
    )
    image = mix(colour(rng, device, 0.15, 0.6), colour(rng, device, 0.3, 0.8), torch.sigmoid(2 * rings) * 0.7)
    _, y = unit_grid(size, device)
    planks = int(rng.integers(2, 9))
    along = y * planks
    shades = torch.from_numpy(rng.normal(1, 0.12, planks).astype(np.float32)).to(device)
    seam = ((along - along.floor() - 0.5).abs() < 0.485).float()
    return weathered(rng, image * shades[along.long()] * (0.35 + 0.65 * seam), rng.uniform(0.03, 0.15))


def collage(rng: Generator, size: int, device: Device) -> Tensor:
    """Overlapping discs and boxes of many sizes: dead leaves, whose statistics are those of photos."""
    count = 96
    radius = np.sort((0.012 * rng.power(1.2, count) ** -0.9).clip(0.012, 0.35))[::-1]  # small ones on top
    turn = rng.uniform(0, np.pi, count)
    columns = [*rng.random((2, count)), np.cos(turn), np.sin(turn), rng.uniform(0.4, 1, count), radius]
    columns.append((rng.random(count) < 0.6).astype(float))
    leaves = torch.from_numpy(np.stack(columns).astype(np.float32)).to(device)[:, :, None, None]
    cx, cy, cos, sin, stretch, radii, is_round = leaves
    x, y = unit_grid(192, device)
    dx, dy = (x - cx + 0.5) % 1 - 0.5, (y - cy + 0.5) % 1 - 0.5  # [count, 192, 192]
    u, v = dx * cos + dy * sin, (dy * cos - dx * sin) / stretch
    extent = torch.where(is_round > 0, (u.square() + v.square()).sqrt(), torch.maximum(u.abs(), v.abs()))
    order = torch.arange(1, count + 1, device=device)[:, None, None]
    top = ((extent < radii) * order).amax(0)  # 0 = ground
    palette = torch.stack([colour(rng, device)[:, 0, 0] for _ in range(12)])
    picks = torch.from_numpy(rng.integers(0, 12, count + 1)).to(device)
    shades = torch.from_numpy(rng.uniform(0.7, 1.3, (count + 1, 1)).astype(np.float32)).to(device)
    image = (palette[picks] * shades)[top].permute(2, 0, 1)  # [3, 192, 192]
    image = F.interpolate(image[None], size=(size, size), mode="bilinear")[0]
    return weathered(rng, image, rng.uniform(0.05, 0.2))


def speckle(rng: Generator, size: int, device: Device) -> Tensor:
    """Granite, gravel, carpet: fine grain with hard spots."""
    fine = octave_noise(rng, size, device, int(rng.choice([32, 64, 128])), 4, 0.8)
    coarse = octave_noise(rng, size, device, 4, 3)
    image = mix(colour(rng, device), colour(rng, device), torch.sigmoid(3 * fine + coarse))
    spots = (fine > rng.uniform(1.2, 2)).float()
    return weathered(rng, mix(image, colour(rng, device), spots), 0.08)


def plastic(rng: Generator, size: int, device: Device) -> Tensor:
    """White or pale plastic: hardly a trace of structure."""
    pale = colour(rng, device, 0.8, 0.95) * 0.3 + rng.uniform(0.55, 0.68)
    return weathered(rng, pale.expand(3, size, size), rng.uniform(0.001, 0.006))


def tiles(rng: Generator, size: int, device: Device) -> Tensor:
    """Cells that are all alike, to the last texel: tiles, meshes, dots, checks."""
    cells = int(rng.choice([4, 8, 16, 32]))
    period = size // cells
    x, y = (2 * t - 1 for t in unit_grid(period, device))  # -1 to 1 in a cell
    form = int(rng.integers(4))
    if form == 0:  # joints
        mark = (torch.maximum(x.abs(), y.abs()) > rng.uniform(0.8, 0.95)).float()
    elif form == 1:  # dots
        mark = (x.square() + y.square() < rng.uniform(0.1, 0.6)).float()
    elif form == 2:  # checks
        mark = (x * y > 0).float()
    else:  # slats
        mark = (y.abs() < rng.uniform(0.3, 0.8)).float()
    cell = mix(colour(rng, device), colour(rng, device), mark)
    return cell.repeat(1, cells, cells)


Painter = Callable[[Generator, int, Device], Tensor]
PAINTERS: dict[str, Painter] = {
    "noise": noise,
    "bricks": bricks,
    "glyphs": glyphs,
    "grating": grating,
    "gradient": gradient,
    "blank": blank,
    "wood": wood,
    "collage": collage,
    "speckle": speckle,
    "plastic": plastic,
    "tiles": tiles,
}
# How often each kind is drawn; the last two only where they are asked for.
SHARES = np.array([0.2, 0.1, 0.16, 0.08, 0.04, 0.06, 0.1, 0.16, 0.1, 0.0, 0.0])
