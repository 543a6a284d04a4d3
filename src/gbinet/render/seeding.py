"""Randomness that depends on its key alone: the same scene on every machine, device and batch size.

Everything random about a scene is drawn here, on the CPU. Per-pixel noise, too much to draw there, comes from
an integer hash that gives the same bits on every device.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from gbinet import ops

Generator = np.random.Generator


def generator(*key: int | str) -> Generator:
    """A generator for one purpose: generator(seed, "lights")."""
    return np.random.default_rng([zlib.crc32(k.encode()) if isinstance(k, str) else int(k) for k in key])


def log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def hash_uniform(shape: tuple[int, ...], seed: int, device: torch.device | str) -> Tensor:
    """Uniform numbers in (0, 1), float32, from a hash of their position and the seed."""
    count, offset = int(np.prod(shape)), seed * 0x9E3779B1 & 0xFFFFFFFF
    if ops.usable(torch.empty(0, device=device)) and count < 2**31:
        from gbinet.render import seeding_triton as fast

        return fast.hash_uniform(count, offset, device).view(shape)
    return hash_uniform_plain(count, offset, device).view(shape)


def hash_uniform_plain(count: int, offset: int, device: torch.device | str) -> Tensor:
    """The reference: [count] float32; offset: below 2^32."""
    x = torch.arange(count, device=device, dtype=torch.int64)
    x = (x + offset) & 0xFFFFFFFF
    for factor in (0x7FEB352D, 0x346CA68B):  # odd 31-bit factors: products stay inside int64
        x = ((x ^ (x >> 16)) * factor) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return ((x >> 8).to(torch.float32) + 0.5) * (1 / (1 << 24))
