"""Photos that structure from motion can place, made in a moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def shifted_photos(folder: Path, count: int, step: int) -> None:
    """Photos of two textured walls at different distances, from places side by side."""
    folder.mkdir(parents=True, exist_ok=True)

    def wall(seed: int) -> np.ndarray:
        noise = np.random.default_rng(seed).integers(0, 256, (60, 160), dtype=np.uint8)
        fine = np.random.default_rng(seed + 1).integers(0, 256, (240, 640), dtype=np.uint8)
        large = np.asarray(Image.fromarray(noise).resize((640, 240), Image.Resampling.BICUBIC))
        return (0.7 * large + 0.3 * fine).astype(np.uint8)

    far, near = wall(1), wall(5)
    for i in range(count):
        photo = np.concatenate(
            [far[:120, i * step : i * step + 320], near[:120, 2 * i * step : 2 * i * step + 320]]
        )
        Image.fromarray(np.stack([photo] * 3, -1)).save(folder / f"p{i}.png")
