"""Randomness that depends on its key alone: the same scene on every machine, device and batch size.

Everything random about a scene is drawn here, on the CPU. Per-pixel noise, too much to draw there, comes from
an integer hash that gives the same bits on every device.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

Chance = np.random.Generator


def chance(*key: int | str) -> Chance:
    """A generator for one purpose: chance(seed, "lights")."""
    return np.random.default_rng([zlib.crc32(k.encode()) if isinstance(k, str) else int(k) for k in key])


def log_uniform(rng: Chance, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def hash_uniform(shape: tuple[int, ...], seed: int, device: torch.device | str) -> Tensor:
    """Uniform numbers in (0, 1), float32, from a hash of their position and the seed."""
    count = int(np.prod(shape))
    x = torch.arange(count, device=device, dtype=torch.int64)
    x = (x + (seed * 0x9E3779B1 & 0xFFFFFFFF)) & 0xFFFFFFFF
    for factor in (0x7FEB352D, 0x346CA68B):  # odd 31-bit factors: products stay inside int64
        x = ((x ^ (x >> 16)) * factor) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return ((x >> 8).to(torch.float32) + 0.5).view(shape) * (1 / (1 << 24))
