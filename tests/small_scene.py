"""The small scene that documents and docstrings call `my-scene`: five photos of a textured plane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.formats.image import write_image
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes.kinds import write_scene


@dataclass(frozen=True)
class TinyScene:
    """A slanted textured plane seen by cameras in a row; view 0 is the reference."""

    images: Tensor  # [V, 3, H, W] in [0, 1]
    cameras: Camera  # [V]
    depth_range: DepthRange
    depth: Tensor  # [H, W] exact depth of view 0


def tiny_scene(views: int = 3, height: int = 48, width: int = 64) -> TinyScene:
    """Exact by construction: each pixel's colour is a smooth function of the point of the plane it sees."""
    focal = 1.1 * width
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]).expand(views, 3, 3)
    cam_from_world = torch.eye(4).repeat(views, 1, 1)
    for view in range(1, views):  # left, right, further left, ... each turned towards the plane a little
        side = (-1) ** view * (0.25 + 0.1 * (view // 2))
        angle = 0.06 * side
        turn = [[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]]
        cam_from_world[view, :3, :3] = torch.tensor(turn)
        cam_from_world[view, :3, 3] = torch.tensor([side, 0.05 * view, 0.0])
    cameras = Camera(K.contiguous(), cam_from_world, width, height)
    normal, distance = torch.tensor([0.2, -0.15, 1.0]), 4.0  # the plane: normal . x = distance
    images, depth = [], torch.empty(0)
    for view in range(views):
        camera = cameras[view]
        pixels = camera.pixel_grid().reshape(-1, 2)
        rays = camera.unproject(pixels, torch.ones(len(pixels))) - camera.centre  # [H * W, 3], z = 1
        z = (distance - camera.centre @ normal) / (rays @ normal)  # [H * W]
        points = camera.centre + rays * z[:, None]
        phase = points[:, :1] * torch.tensor([9.0, 13.0, 5.0]) + points[:, 1:2] * torch.tensor(
            [7.0, 3.0, 11.0]
        )
        colour = 0.5 + 0.25 * torch.sin(phase) + 0.2 * torch.sin(2.3 * phase.flip(1) + 1)
        images.append(colour.T.reshape(3, height, width).clamp(0, 1))
        if view == 0:
            depth = z.reshape(height, width)
    return TinyScene(torch.stack(images), cameras, DepthRange(2.5, 6.5), depth)


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
