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
        """The points [N, 3] after the transform."""
        transformed: Points = self.scale * points @ self.rotation.T + self.shift
        return transformed

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The same as a 4x4 matrix."""
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = self.scale * self.rotation, self.shift
        return matrix


def scaled(factor: float) -> Similarity:
    return Similarity(factor, np.eye(3), np.zeros(3))


def transformed_scene(scene: Scene, similarity: Similarity) -> Scene:
    """The scene in another frame and unit: cameras, points, depth ranges, and the scale of stored depth."""
    points = scene.points
    if points is not None:
        points = replace(points, xyz=torch.from_numpy(similarity.applied(points.xyz.double().numpy())))
    return replace(
        scene, views=tuple(_transformed_view(view, similarity) for view in scene.views), points=points
    )


def _transformed_view(view: View, similarity: Similarity) -> View:
    limits = view.depth_range
    return replace(
        view,
        camera=transformed_camera(view.camera, similarity),
        depth_range=None
        if limits is None
        else DepthRange(limits.near * similarity.scale, limits.far * similarity.scale),
        depth_scale=view.depth_scale * similarity.scale,
    )


def transformed_camera(camera: Camera, similarity: Similarity) -> Camera:
    """The camera that sees the transformed world as this one sees the world; depths grow by the scale."""
    pose = camera.cam_from_world.double().clone()
    rotation = pose[:3, :3] @ torch.from_numpy(similarity.rotation).T
    pose[:3, 3] = similarity.scale * pose[:3, 3] - rotation @ torch.from_numpy(similarity.shift)
    pose[:3, :3] = rotation
    return replace(camera, cam_from_world=pose)
