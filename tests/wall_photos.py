"""Photos of two textured walls, one behind the other, from places side by side: enough for real poses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

_MAKE, _MODEL, _ORIENTATION = 0x010F, 0x0110, 0x0112
_WALLS = ((5.0, -9.0, 9.0, -9.0), (4.0, -1.2, 1.4, -0.8))  # depth, left, right, top
_PER_UNIT = 130  # texels


def _texture(seed: int, height: int, width: int) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    total = np.zeros((height, width))
    for size, weight in ((4, 0.3), (10, 0.4), (32, 0.5)):
        noise = random.integers(0, 256, (height // size + 2, width // size + 2), dtype=np.uint8)
        total += weight * np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))
    return total / 1.2


def wall_photos(count: int, width: int = 400, height: int = 300) -> list[Pixels]:
    """Upright photos of a camera that walks along the walls and turns a little."""
    focal = 0.95 * width
    y, x = np.mgrid[0:height, 0:width] + 0.5
    rays = np.stack([(x - width / 2) / focal, (y - height / 2) / focal, np.ones_like(x)], -1)  # [H, W, 3]
    textures = [_texture(seed, 900, 1600) for seed in (3, 9)]
    photos = []
    for number in range(count):
        place = number - (count - 1) / 2
        cos, sin = np.cos(0.09 * place), np.sin(0.09 * place)
        world = rays @ np.array([[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]]).T
        left, up = 0.35 * place, 0.12 * (number % 3)
        photo = np.zeros((height, width))
        for (depth, x0, x1, y0), texture in zip(_WALLS, textures, strict=True):
            far = depth / world[..., 2]
            wall_x, wall_y = left + far * world[..., 0], up + far * world[..., 1]
            column, row = ((wall_x + 5) * _PER_UNIT).astype(int), ((wall_y + 3.2) * _PER_UNIT).astype(int)
            hit = (wall_x > x0) & (wall_x < x1) & (wall_y > y0)
            hit &= (column >= 0) & (column < 1600) & (row >= 0) & (row < 900)
            photo = np.where(hit, texture[row.clip(0, 899), column.clip(0, 1599)], photo)
        photos.append(np.repeat(photo.clip(0, 255).astype(np.uint8)[..., None], 3, -1))
    return photos


def save_turned(path: Path, upright: Pixels, orientation: int = 1, model: str = "") -> None:
    """A JPEG whose pixels lie as the EXIF orientation says, so that it is shown upright."""
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: upright.swapaxes(0, 1)[::-1],
        7: upright[::-1, ::-1].swapaxes(0, 1),
        8: upright.swapaxes(0, 1)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    if model:
        exif[_MAKE], exif[_MODEL] = "Maker", model
    Image.fromarray(np.ascontiguousarray(stored)).save(path, quality=95, exif=exif)
