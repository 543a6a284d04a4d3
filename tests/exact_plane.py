"""A small scene whose depth is known exactly: a textured plane, seen from five places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.formats.image import write_image
from gbinet.scene import DepthRange, Scene, SourceView, View

# The plane n . X = d in the world.
NORMAL = torch.tensor([0.2, -0.3, -1.0], dtype=torch.float64) / torch.tensor(1.13, dtype=torch.float64).sqrt()
DISTANCE = -3.0
WIDTH, HEIGHT = 96, 72


def look_at(centre: list[float]) -> torch.Tensor:
    """cam_from_world of a camera at `centre` that looks at (0, 0, 3)."""
    position = torch.tensor(centre, dtype=torch.float64)
    forward = torch.nn.functional.normalize(torch.tensor([0.0, 0, 3], dtype=torch.float64) - position, dim=0)
    right = torch.nn.functional.normalize(
        torch.linalg.cross(torch.tensor([0.0, 1, 0], dtype=torch.float64), forward), dim=0
    )
    rotation = torch.stack([right, torch.linalg.cross(forward, right), forward])
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = rotation
    pose[:3, 3] = -rotation @ position
    return pose


def plane_depth(camera: Camera) -> DepthMap:
    pixels = camera.pixel_grid().reshape(-1, 2)
    direction = camera.unproject(pixels, torch.ones(len(pixels), dtype=torch.float64)) - camera.centre
    depth = (DISTANCE - NORMAL @ camera.centre) / (direction @ NORMAL)
    depth = depth.reshape(camera.height, camera.width).float()
    confidence = torch.linspace(0, 1, depth.numel()).reshape(depth.shape)
    return DepthMap(depth, camera, confidence)


def texture(depth_map: DepthMap) -> np.ndarray:
    points = depth_map.points()
    waves = torch.sin(points[..., :2] * 9).abs() * 200 + 20
    return torch.cat([waves, waves[..., :1].flip(0)], dim=-1).round().to(torch.uint8).numpy()


def make_plane_scene(folder: Path) -> tuple[Scene, list[DepthMap]]:
    """The scene and the exact depth map of each view."""
    K = torch.tensor([[90.0, 0, 47], [0, 91, 37], [0, 0, 1]], dtype=torch.float64)
    centres = [[-0.4, 0.0, 0.0], [-0.2, 0.1, 0.0], [0.0, -0.1, 0.1], [0.2, 0.1, 0.0], [0.4, 0.0, -0.1]]
    cameras = [Camera(K, look_at(centre), WIDTH, HEIGHT) for centre in centres]
    depth_maps = [plane_depth(camera) for camera in cameras]
    views = []
    for index, (camera, depth_map) in enumerate(zip(cameras, depth_maps, strict=True)):
        others = sorted(set(range(5)) - {index}, key=lambda other: abs(other - index))
        mask = np.ones((HEIGHT, WIDTH), bool)
        mask[:, :4] = False
        views.append(
            View(
                name=f"view_{index}",
                camera=camera,
                image_path=write_image(folder / f"view_{index}.png", texture(depth_map)),
                depth_range=DepthRange(1.5 + 0.01 * index, 6.0 + 0.1 * index),
                sources=tuple(SourceView(other, 10.0 / abs(other - index) + 1 / 3) for other in others),
                mask_path=write_image(folder / f"view_{index}_mask.png", mask) if index % 2 else None,
            )
        )
    return Scene("plane", "test", folder, tuple(views)), depth_maps


@pytest.fixture(scope="session")
def plane_scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, list[DepthMap]]:
    return make_plane_scene(tmp_path_factory.mktemp("plane"))
