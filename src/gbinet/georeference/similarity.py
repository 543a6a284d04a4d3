"""Scale, rotation and shift of a whole scene."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.camera import Camera
from gbinet.scene import DepthRange, Scene, View

Points = NDArray[np.float64]  # [N, 3]


@dataclass(frozen=True)
class Similarity:
    """target = scale * rotation @ source + shift."""

    scale: float
    rotation: NDArray[np.float64]  # [3, 3]
    shift: NDArray[np.float64]  # [3]

    def applied(self, points: Points) -> Points:
        moved: Points = self.scale * points @ self.rotation.T + self.shift
        return moved

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The same as a 4x4 matrix."""
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = self.scale * self.rotation, self.shift
        return matrix


def scaled(factor: float) -> Similarity:
    return Similarity(factor, np.eye(3), np.zeros(3))


def moved_scene(scene: Scene, move: Similarity) -> Scene:
    """The scene in another frame and unit: cameras, points, depth ranges, and the scale of stored depth."""
    points = scene.points
    if points is not None:
        points = replace(points, xyz=torch.from_numpy(move.applied(points.xyz.double().numpy())))
    return replace(scene, views=tuple(_moved_view(view, move) for view in scene.views), points=points)


def _moved_view(view: View, move: Similarity) -> View:
    limits = view.depth_range
    return replace(
        view,
        camera=moved_camera(view.camera, move),
        depth_range=None if limits is None else DepthRange(limits.near * move.scale, limits.far * move.scale),
        depth_scale=view.depth_scale * move.scale,
    )


def moved_camera(camera: Camera, move: Similarity) -> Camera:
    """The camera that sees the moved world as this one sees the world; depths grow by the scale."""
    pose = camera.cam_from_world.double().clone()
    rotation = pose[:3, :3] @ torch.from_numpy(move.rotation).T
    pose[:3, 3] = move.scale * pose[:3, 3] - rotation @ torch.from_numpy(move.shift)
    pose[:3, :3] = rotation
    return replace(camera, cam_from_world=pose)
