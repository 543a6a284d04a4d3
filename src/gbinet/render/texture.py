"""Textures as one flat buffer of texels with all mip levels, and trilinear look-up.

Every texture is a square of 2^k texels a side, so that the place of a level follows from k alone: a texture
takes 4^k + 4^(k-1) + ... + 1 texels, level 0 first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Texture:
    """One texture with its mip levels."""

    texels: Tensor  # [T, 4] uint8: R, G, B, unused
    log_size: int  # 2^log_size texels a side


@dataclass(frozen=True)
class TexturePack:
    """All textures of a scene, one after the other."""

    texels: Tensor  # [T, 4] uint8
    base: Tensor  # [n] int32: first texel of each texture
    log_size: Tensor  # [n] int32

    @staticmethod
    def of(textures: Sequence[Texture]) -> TexturePack:
        texels = torch.cat([t.texels for t in textures])
        starts = [0]
        for texture in textures[:-1]:
            starts.append(starts[-1] + len(texture.texels))
        device = texels.device
        base = torch.tensor(starts, dtype=torch.int32).to(device, non_blocking=True)
        sizes = torch.tensor([t.log_size for t in textures], dtype=torch.int32).to(device, non_blocking=True)
        return TexturePack(texels, base, sizes)


def make_texture(image: Tensor) -> Texture:
    """Texture from a square image [3, S, S], float in [0, 1] or uint8, S a power of two."""
    size = image.shape[-1]
    level = image.float() if image.dtype == torch.uint8 else image.clamp(0, 1) * 255
    levels = [level]
    for _ in range(int(math.log2(size))):
        level = F.avg_pool2d(level[None], 2)[0]
        levels.append(level)
    flat = torch.cat([x.flatten(1) for x in levels], dim=1)  # [3, T]
    alpha = torch.full_like(flat[:1], 255)
    texels = torch.cat([flat, alpha]).t().round().to(torch.uint8).contiguous()
    return Texture(texels, int(math.log2(size)))


def sample(pack: TexturePack, texture: Tensor, uv: Tensor, density: Tensor) -> Tensor:
    """Colour [P, 3] in [0, 1] of textures [P] at uv [P, 2] (repeated beyond [0, 1]).

    density [P] is the footprint of the sample in texels of level 0: it chooses the mip levels.
    """
    base = pack.base[texture]  # [P] int32
    log_size = pack.log_size[texture]
    lod = torch.log2(density.clamp_min(1.0)).minimum(log_size.float())
    lower = lod.floor()
    blend = (lod - lower)[:, None]
    lower = lower.int()
    u, v = uv[:, 0] % 1, (1 - uv[:, 1]) % 1  # row = (1 - v) * height
    first = _bilinear(pack.texels, base, log_size, lower, u, v)
    second = _bilinear(pack.texels, base, log_size, torch.minimum(lower + 1, log_size), u, v)
    return (first + (second - first) * blend) * (1 / 255)


def _bilinear(texels: Tensor, base: Tensor, log_size: Tensor, level: Tensor, u: Tensor, v: Tensor) -> Tensor:
    remaining = log_size - level
    start = base + _texels_before(log_size, remaining)
    size = torch.ones_like(remaining) << remaining
    x, y = u * size - 0.5, v * size - 0.5  # a texel's value sits at its centre
    x0, y0 = x.floor(), y.floor()
    fx, fy = (x - x0)[:, None], (y - y0)[:, None]
    mask = size - 1  # power of two: wrapping is a bit mask
    x0, y0 = x0.int(), y0.int()
    columns = (x0 & mask, (x0 + 1) & mask)
    rows = (start + ((y0 & mask) << remaining), start + (((y0 + 1) & mask) << remaining))
    corner = [[texels[row + column, :3].float() for column in columns] for row in rows]
    top = corner[0][0] + (corner[0][1] - corner[0][0]) * fx
    bottom = corner[1][0] + (corner[1][1] - corner[1][0]) * fx
    return top + (bottom - top) * fy


def _texels_before(log_size: Tensor, remaining: Tensor) -> Tensor:
    """Texels of the levels above the one of 2^remaining texels a side."""
    one = torch.ones_like(log_size)
    return ((one << (2 * log_size + 2)) - (one << (2 * remaining + 2))) // 3
