"""The two walls of `wall_photos` as a scene whose cameras are known exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from wall_photos import wall_photos

from gbinet.camera import Camera
from gbinet.formats.image import write_image
from gbinet.scene import DepthRange, Scene, SourceView, View


def walls_scene(folder: Path, count: int, *, blank: bool = False, known_range: bool = True) -> Scene:
    photos, views = wall_photos(count, 240, 180), []
    for number, photo in enumerate(photos):
        height, width = photo.shape[:2]
        place = number - (count - 1) / 2
        cos, sin = np.cos(0.09 * place), np.sin(0.09 * place)
        pose = np.eye(4)
        pose[:3, :3] = np.array([[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]]).T
        pose[:3, 3] = -pose[:3, :3] @ np.array([0.35 * place, 0.12 * (number % 3), 0])
        K = torch.tensor([[0.95 * width, 0, width / 2], [0, 0.95 * width, height / 2], [0, 0, 1]])
        path = write_image(folder / f"{number}.png", np.full_like(photo, 90) if blank else photo)
        others = sorted((i for i in range(count) if i != number), key=lambda i: abs(i - number))
        sources = tuple(SourceView(i, 1.0) for i in others[:4])
        views.append(
            View(
                str(number),
                Camera(K.double(), torch.from_numpy(pose), width, height),
                path,
                DepthRange(3, 9) if known_range else None,
                sources if known_range else (),
            )
        )
    return Scene("walls", "made", folder, tuple(views))
