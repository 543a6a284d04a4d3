"""From light to photo: exposure, white balance, vignetting, blur, noise, tone, JPEG blocks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.render.seeding import Generator, hash_uniform, log_uniform


@dataclass(frozen=True)
class SensorConfig:
    """The imperfections of photos. All zero: ideal pictures."""

    exposure: float = 0.1  # spread of log brightness between the views of a sample
    balance: float = 0.03  # spread of the colour channels between views
    vignetting: float = 0.3  # largest loss of light in the corners
    blur: float = 0.7  # largest blur, standard deviation in pixels
    noise: float = 0.015  # largest noise of a mid-grey pixel
    jpeg: float = 0.5  # share of samples with JPEG blocks
    dim: float = 0.0  # largest noise of photos in little light, instead of `noise`; 0: enough light
    motion: float = 0.0  # longest streak of a camera that moves, in pixels
    defocus: float = 0.0  # largest disc of a point that is out of focus: its radius in pixels

    def under(self, amounts: Mapping[str, float]) -> SensorConfig:
        """The sensor in a sample with these difficulties."""
        changes = {
            name: amounts[name] for name in ("exposure", "dim", "motion", "defocus") if name in amounts
        }
        if "exposure" in changes:  # photos of different exposure differ in colour, too
            changes["balance"] = 3 * self.balance
        return replace(self, **changes)


IDEAL = SensorConfig(0, 0, 0, 0, 0, 0)


def expose(linear: Tensor, rng: Generator, config: SensorConfig, depth: Tensor | None = None) -> Tensor:
    """Photos [V, 3, H, W] in [0, 1] from linear light [V, 3, H, W], all views of one sample together.

    depth [V, H, W], infinite where there is none, says what is out of focus; without it everything is.
    """
    views, _, height, width = linear.shape
    device = linear.device
    brightness = log_uniform(rng, 0.13, 0.3)  # of the mean
    mean = linear.clamp_max(4.0).mean(dtype=torch.float32).clamp_min(1e-4)
    gains = np.exp(rng.normal(0, config.exposure, (views, 1)) + rng.normal(0, config.balance, (views, 3)))
    settings = np.concatenate([gains * brightness, rng.uniform(0, config.vignetting, (views, 1))], 1)
    tensor = torch.from_numpy(settings.astype(np.float32)).to(device, non_blocking=True)
    image = linear * (tensor[:, :3] / mean)[:, :, None, None]
    sigmas = rng.uniform(0, 1, views) ** 2 * config.blur if config.blur > 0 else np.zeros(views)
    level, seed = rng.uniform(0, 1) ** 2 * config.noise, int(rng.integers(1 << 30))
    quality = log_uniform(rng, 1.0, 6.0) if rng.random() < config.jpeg else 0.0
    if config.dim > 0:
        image, level = image * log_uniform(rng, 0.2, 0.6), rng.uniform(0.4, 1) * config.dim
    if config.motion > 0:
        image = _convolved(image, streaks(rng, views, config.motion))
    if config.defocus > 0:
        image = _defocus(image, rng, config.defocus, depth)
    if config.vignetting > 0:
        image = image * _vignette(tensor[:, 3], height, width)
    if config.blur > 0:
        image = _blur(image, sigmas)
    image = _tone(image)
    if level > 0:
        # two uniforms make a bell that is good enough; photon noise grows towards the dark
        draws = hash_uniform((2, views, 3, height, width), seed, device)
        image = image + (draws[0] + draws[1] - 1) * (2.4 * level) / (0.5 + image).sqrt()
    if quality > 0:
        image = _jpeg(image.clamp(0, 1), quality)
    return image.clamp(0, 1)


def _tone(linear: Tensor) -> Tensor:
    """Display values: gamma with a soft shoulder, so that highlights do not clip at once."""
    value = linear.clamp_min(0)
    value = torch.where(value > 0.6, 0.6 + 0.4 * (1 - torch.exp(-(value - 0.6) / 0.4)), value)
    return value ** (1 / 2.2)


def _vignette(strength: Tensor, height: int, width: int) -> Tensor:
    y = torch.linspace(-1, 1, height, device=strength.device)[:, None]
    x = torch.linspace(-1, 1, width, device=strength.device)[None, :]
    return 1 - strength[:, None, None, None] * 0.5 * (x.square() + y.square())


def streaks(rng: Generator, views: int, longest: float) -> np.ndarray:
    """Blur kernels [V, k, k] of cameras of which more than half move along a line during the exposure."""
    reach = int(np.ceil(longest / 2))
    grid = np.arange(-reach, reach + 1)
    turn = rng.uniform(0, np.pi, (views, 1))
    moved = rng.random((views, 1)) < 0.6
    moved[rng.integers(views)] = True
    length = longest * rng.uniform(0.3, 1, (views, 1)) * moved
    along = np.linspace(-0.5, 0.5, 4 * len(grid)) * length  # [V, n] points on the line
    x, y = along * np.cos(turn), along * np.sin(turn)
    hats = [np.maximum(0, 1 - np.abs(t[:, :, None] - grid)) for t in (x, y)]  # [V, n, k] each
    kernels = np.einsum("vnx,vny->vyx", *hats)
    return np.asarray(kernels / kernels.sum((1, 2), keepdims=True))


def discs(radii: np.ndarray) -> np.ndarray:
    """Blur kernels [V, k, k]: discs of these radii in pixels."""
    reach = int(np.ceil(radii.max() + 0.5))
    grid = np.arange(-reach, reach + 1)
    distance = np.hypot(grid[:, None], grid[None])
    kernels = np.clip(radii[:, None, None] + 0.5 - distance, 0, 1)
    return np.asarray(kernels / kernels.sum((1, 2), keepdims=True))


def _defocus(image: Tensor, rng: Generator, largest: float, depth: Tensor | None) -> Tensor:
    """Each view is focused at the depth in its middle, and what is nearer or farther gets blurred."""
    views, _, height, width = image.shape
    radii = largest * rng.uniform(0.3, 1, views)
    blurred = _convolved(image, discs(radii))
    if depth is None:
        return blurred
    sharp = depth[:, height // 2, width // 2]  # [V]
    sharp = torch.where(sharp.isfinite(), sharp, depth.flatten(1).amin(1))[:, None, None]
    lens = torch.from_numpy(rng.uniform(1.5, 6, views).astype(np.float32)).to(image.device, non_blocking=True)
    share = (lens[:, None, None] * (1 - sharp / depth).abs()).clamp(0, 1)[:, None]  # [V, 1, H, W]
    share = share.nan_to_num(nan=1.0)  # a view of nothing at all has no depth to focus at
    return image + (blurred - image) * share


def _convolved(image: Tensor, kernels: np.ndarray) -> Tensor:
    """Every view [V, 3, H, W] convolved with its own kernel [V, k, k]."""
    taps = torch.from_numpy(kernels.astype(np.float32)).to(image.device, non_blocking=True)
    reach = kernels.shape[-1] // 2
    padded = F.pad(image, (reach, reach, reach, reach), mode="replicate").transpose(0, 1)
    return F.conv2d(padded, taps[:, None], groups=len(kernels)).transpose(0, 1)


def _blur(image: Tensor, sigmas: np.ndarray) -> Tensor:
    """Gaussian of 5 taps with one width per view."""
    offsets = np.arange(-2, 3)
    kernels = np.exp(-0.5 * (offsets[None] / np.maximum(sigmas, 0.15)[:, None]) ** 2)
    kernels = (kernels / kernels.sum(1, keepdims=True)).astype(np.float32)
    taps = torch.from_numpy(kernels).to(image.device, non_blocking=True)[
        :, :, None, None, None
    ]  # [V, 5, 1, 1, 1]
    padded = F.pad(image, (2, 2, 2, 2), mode="replicate")
    width, height = image.shape[3], image.shape[2]
    rows = taps[:, 0] * padded[..., :width]
    for i in range(1, 5):
        rows = rows + taps[:, i] * padded[..., i : i + width]
    blurred = taps[:, 0] * rows[:, :, :height]
    for i in range(1, 5):
        blurred = blurred + taps[:, i] * rows[:, :, i : i + height]
    return blurred


_LUMINANCE = [
    [16, 11, 10, 16, 24, 40, 51, 61],
    [12, 12, 14, 19, 26, 58, 60, 55],
    [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62],
    [18, 22, 37, 56, 68, 109, 103, 77],
    [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101],
    [72, 92, 95, 98, 112, 100, 103, 99],
]


@functools.lru_cache(maxsize=8)
def _jpeg_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """The cosine transform of 8 numbers, [8, 8], and the steps of quantisation, [8, 8]."""
    k, n = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    matrix = np.sqrt(2 / 8) * np.cos(np.pi * (2 * n + 1) * k / 16)
    matrix[0] = np.sqrt(1 / 8)
    steps = torch.tensor(_LUMINANCE, dtype=torch.float32)
    return torch.from_numpy(matrix.astype(np.float32)).to(device), steps.to(device)


def _jpeg(image: Tensor, strength: float) -> Tensor:
    """Blocks of 8 x 8 quantised as JPEG does; strength 1 is about quality 95, 6 about quality 70."""
    views, _, height, width = image.shape
    dct, table = _jpeg_tables(image.device)
    steps = table * (0.1 * strength / 255)
    padded = F.pad(image, (0, -width % 8, 0, -height % 8), mode="replicate")
    grid = padded.unfold(2, 8, 8).unfold(3, 8, 8)  # [V, 3, H/8, W/8, 8, 8]
    coefficients = torch.einsum("ki,vcyxij,lj->vcyxkl", dct, grid, dct)
    rounded = (coefficients / steps).round() * steps
    blocks = torch.einsum("ki,vcyxkl,lj->vcyxij", dct, rounded, dct)
    whole = blocks.permute(0, 1, 2, 4, 3, 5).reshape(views, 3, padded.shape[2], padded.shape[3])
    return whole[:, :, :height, :width]
