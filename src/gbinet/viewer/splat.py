"""A cloud as a picture: points as small squares with a depth buffer, in plain torch."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gbinet.camera import Camera
from gbinet.pointcloud import PointCloud


def splat(
    cloud: PointCloud, camera: Camera, size: int = 2, background: tuple[int, int, int] = (24, 26, 30)
) -> NDArray[np.uint8]:  # [H, W, 3]
    """The cloud seen by a camera; each point covers size x size pixels, the nearest wins."""
    height, width = camera.height, camera.width
    picture = torch.tensor(background, dtype=torch.uint8).repeat(height * width, 1)
    pixels, depth = camera.to("cpu", torch.float64).project(cloud.xyz.double())
    visible = (depth > 0) & torch.isfinite(pixels).all(-1)
    rgb = torch.full((len(cloud), 3), 200, dtype=torch.uint8) if cloud.rgb is None else cloud.rgb
    pixels, depth, rgb = pixels[visible], depth[visible].float(), rgb[visible]
    nearest = torch.full((height * width,), torch.inf)
    corner = (pixels - (size - 1) / 2).floor().clamp(-1e6, 1e6).long()  # upper left pixel of the square
    squares = []
    for dy in range(size):
        for dx in range(size):
            column, row = corner[:, 0] + dx, corner[:, 1] + dy
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            index = (row * width + column)[inside]
            nearest.scatter_reduce_(0, index, depth[inside], "amin")
            squares.append((index, inside))
    for index, inside in squares:
        wins = depth[inside] <= nearest[index]
        picture[index[wins]] = rgb[inside][wins]
    return picture.reshape(height, width, 3).numpy()


def centre_and_radius(cloud: PointCloud) -> tuple[Tensor, float]:
    """Where the bulk of the cloud is: median position, and the distance that holds four fifths of it."""
    if len(cloud) == 0:
        return torch.zeros(3, dtype=torch.float64), 1.0
    xyz = cloud.xyz[:: max(1, len(cloud) // 100_000)].double()
    centre = xyz.median(0).values
    return centre, max(float((xyz - centre).norm(dim=-1).quantile(0.8)), 1e-9)


def orbit(centre: Tensor, distance: float, front: Tensor, up: Tensor, turn: float, lift: float) -> Tensor:
    """cam_from_world of a camera around a centre: `turn` and `lift` in degrees from the front. [4, 4]."""
    up = torch.nn.functional.normalize(up.double(), dim=0)
    front = front.double() - (front.double() @ up) * up
    if float(front.norm()) < 1e-9:  # cameras look straight down: any side is the front
        front = torch.linalg.cross(up, torch.tensor([0.31, 0.59, 0.74], dtype=torch.float64))
    front = torch.nn.functional.normalize(front, dim=0)
    side = torch.linalg.cross(up, front)
    a, b = math.radians(turn), math.radians(lift)
    direction = math.cos(b) * (math.cos(a) * front + math.sin(a) * side) + math.sin(b) * up
    forward = -direction
    right = torch.nn.functional.normalize(torch.linalg.cross(forward, up), dim=0)
    down = torch.linalg.cross(forward, right)
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = torch.stack([right, down, forward])
    pose[:3, 3] = -pose[:3, :3] @ (centre.double() + distance * direction)
    return pose
