"""Textured planes seen by a few cameras: samples with exact depth that cost next to nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import Camera, inverse_3x3
from gbinet.scenes.batch import Batch, collate


class PlaneSource:
    """Batches by number: a slanted plane with a random texture, one scene per sample."""

    def __init__(self, height: int = 64, width: int = 64, views: int = 3, scenes: int = 0) -> None:
        self.height, self.width, self.views = height, width, views
        self.scenes = scenes  # repeat after so many scenes; 0 = never

    def batch(self, index: int, batch_size: int) -> Batch:
        return collate([self.sample(index * batch_size + i) for i in range(batch_size)])

    def sample(self, number: int) -> Batch:
        if self.scenes:
            number %= self.scenes
        random = torch.Generator().manual_seed(number)
        focal = 1.2 * self.width
        K = torch.tensor([[focal, 0, self.width / 2], [0, focal, self.height / 2], [0, 0, 1]])
        pose = torch.eye(4).repeat(self.views, 1, 1)
        pose[1:, :3, 3] = torch.randn(self.views - 1, 3, generator=random) * torch.tensor([80.0, 80.0, 10.0])
        cameras = Camera(K.repeat(self.views, 1, 1), pose, self.width, self.height)
        normal = torch.tensor([*(torch.randn(2, generator=random) * 0.3).tolist(), 1.0])
        offset = 500 + 350 * torch.rand((), generator=random)  # normal . X = offset
        texture = torch.rand(1, 3, 40, 40, generator=random)
        images, depths = zip(*(_look(c, normal, offset, texture) for c in cameras_of(cameras)), strict=True)
        return Batch(
            images=torch.stack(images)[None],
            cameras=cameras[None],
            depth_range=torch.tensor([[425.0, 935.0]]),
            depth=depths[0][None],
            mask=depths[0][None] > 0,
            names=(f"plane/{number}",),
        )


def cameras_of(cameras: Camera) -> list[Camera]:
    return [cameras[i] for i in range(cameras.K.shape[0])]


def _look(camera: Camera, normal: Tensor, offset: Tensor, texture: Tensor) -> tuple[Tensor, Tensor]:
    """Image [3, H, W] and depth [H, W] of the plane."""
    pixels = camera.pixel_grid()  # [H, W, 2]
    rays = torch.cat([pixels, torch.ones_like(pixels[..., :1])], -1) @ inverse_3x3(camera.K).mT  # z = 1
    depth = (offset - camera.centre @ normal) / (rays @ normal)  # [H, W]; no rotations in these scenes
    points = camera.centre + rays * depth[..., None]
    image = F.grid_sample(texture, points[None, ..., :2] / 400, "bilinear", "reflection", align_corners=False)
    return image[0], depth
