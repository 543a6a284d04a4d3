"""A ball on a floor, with photos on disk and exact depth: a scene for fusion, inference and the pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.scene import DepthRange, Scene, SourceView, View

RADIUS = 1.0  # of a ball at the origin, on a floor at y = 1 (y points down)


def look_at(position: Tensor, target: Tensor) -> Tensor:
    """cam_from_world of a camera at `position` that looks at `target`, y down. [4, 4] float64."""
    forward = torch.nn.functional.normalize(target - position, dim=0)
    right = torch.nn.functional.normalize(
        torch.linalg.cross(torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64), forward), dim=0
    )
    down = torch.linalg.cross(forward, right)
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = torch.stack([right, down, forward])
    pose[:3, 3] = -pose[:3, :3] @ position
    return pose


def true_depth(camera: Camera) -> Tensor:
    """Exact depth of ball and floor, [H, W] float32; 0 = sky."""
    camera = camera.to("cpu", torch.float64)
    grid = camera.pixel_grid().reshape(-1, 2)
    origin = camera.centre
    rays = camera.unproject(grid, torch.ones(len(grid), dtype=torch.float64)) - origin  # z = 1 along each
    a, b, c = (rays * rays).sum(-1), rays @ origin, origin @ origin - RADIUS**2
    root = b * b - a * c
    ball = torch.where(root > 0, (-b - root.clamp(min=0).sqrt()) / a, torch.inf)
    floor = torch.where(rays[:, 1] > 1e-6, (RADIUS - origin[1]) / rays[:, 1], torch.inf)
    depth = torch.minimum(ball, torch.where(floor < 12, floor, torch.inf))
    return torch.where(torch.isfinite(depth), depth, 0).float().reshape(camera.height, camera.width)


def _picture(camera: Camera) -> np.ndarray:
    """The ball and the floor with a pattern that is fixed in space, [H, W, 3] uint8."""
    points = DepthMap(true_depth(camera), camera).points()
    waves = [
        (points * torch.tensor(f)).sum(-1) for f in ((9.0, 4.0, 2.0), (3.0, 11.0, 5.0), (2.0, 5.0, 13.0))
    ]
    pattern = torch.stack([0.5 + 0.4 * torch.sin(w) for w in waves], dim=-1)
    return (pattern * 255).round().to(torch.uint8).numpy()


SceneMaker = Callable[..., Scene]


@pytest.fixture
def ball_scene(tmp_path: Path) -> SceneMaker:
    """make(views=5, width=64, height=48, shift=(0, 0, 0)) -> a scene on disk with photos and exact depth."""

    def make(
        views: int = 5, width: int = 64, height: int = 48, shift: tuple[float, float, float] = (0, 0, 0)
    ) -> Scene:
        folder = tmp_path / "photos"
        folder.mkdir(exist_ok=True)
        made = []
        for i in range(views):
            angle = math.radians(8.0 * i)
            position = torch.tensor([4 * math.sin(angle), -1.2, -4 * math.cos(angle)], dtype=torch.float64)
            K = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], dtype=torch.float64)
            camera = Camera(K, look_at(position, torch.zeros(3, dtype=torch.float64)), width, height)
            path = folder / f"{i:03d}.png"
            Image.fromarray(_picture(camera)).save(path)
            moved = camera.cam_from_world.clone()
            moved[:3, 3] -= moved[:3, :3] @ torch.tensor(shift, dtype=torch.float64)
            near_first = sorted((j for j in range(views) if j != i), key=lambda j: (abs(i - j), j))
            sources = tuple(SourceView(j, 1 / abs(i - j)) for j in near_first)
            made.append(View(path.stem, camera, path, DepthRange(2.0, 14.0), sources))
            made[-1] = replace(made[-1], camera=replace(camera, cam_from_world=moved))
        return Scene("ball", "test", folder, tuple(made))

    return make
