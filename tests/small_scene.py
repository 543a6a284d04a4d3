"""The small scene that documents and docstrings call `my-scene`: five photos of a textured plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from conftest import tiny_scene

from gbinet.formats.image import write_image
from gbinet.scene import Scene, SourceView, View
from gbinet.scenes.kinds import write_scene


def write_small_scene(folder: Path) -> None:
    """As files, in MVSNet's shape, 96x64 pixels."""
    tiny = tiny_scene(5, 64, 96)
    views = []
    for index, image in enumerate(tiny.images):
        pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        path = write_image(folder.with_name("photos") / f"{index:08d}.png", np.ascontiguousarray(pixels))
        others = tuple(SourceView(i, 1.0) for i in range(len(tiny.images)) if i != index)
        camera = tiny.cameras[index].to(dtype=torch.float64)
        views.append(View(f"{index:08d}", camera, path, tiny.depth_range, others))
    write_scene(Scene("tiny", "made", folder, tuple(views)), folder, "mvsnet")
