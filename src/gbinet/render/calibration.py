"""Slightly wrong cameras, as structure from motion estimates them.

The reference and its depth stay true. The network is given slightly wrong poses, focal lengths and principal
points of the source views, whose photos keep a little lens distortion. The error is measured by reprojection:
the distance of the points that the reference sees from where the source views show them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import Camera
from gbinet.render.seeding import Generator

_STEP = 4  # px of the reference between points at which the error is measured
_TERMS = 10  # rotation 3, translation 3, focal length 1, principal point 2, distortion 1


@dataclass(frozen=True)
class PerturbedCameras:
    """The cameras that the network is given for a sample, and the distortion that is left in their photos."""

    cameras: Camera  # [V] float64; the first is true
    distortion: Tensor  # [V - 1] radial shift of the sources' pixels half a diagonal from the centre, px

    def distorted(self, images: Tensor) -> Tensor:
        """Photos [V, 3, H, W] with the distortion of the sources."""
        height, width = images.shape[-2:]
        pixels = self.cameras[0].pixel_grid()[None]  # [1, H, W, 2]
        undistorted = pixels - distortion_shift(self.cameras[1:], self.distortion, pixels)
        grid = torch.stack([undistorted[..., 0] / width, undistorted[..., 1] / height], -1) * 2 - 1
        sources = F.grid_sample(images[1:], grid.to(images.dtype), "bicubic", "border", align_corners=False)
        return torch.cat([images[:1], sources.clamp_min(0)])


def distortion_shift(cameras: Camera, distortion: Tensor, pixels: Tensor) -> Tensor:
    """Radial shift [V, ..., 2] of pixels [V or 1, ..., 2]; distortion [V]: the shift half a diagonal from the
    centre, in pixels."""
    ones = [1] * (pixels.dim() - 2)
    centre = cameras.K[:, :2, 2].view(-1, *ones, 2)
    offset = (pixels - centre) / (0.5 * float(np.hypot(cameras.width, cameras.height)))
    return distortion.view(-1, *ones, 1) * offset * offset.square().sum(-1, keepdim=True)


def perturb(
    rng: Generator, cameras: Camera, depth: Tensor, distance: float, largest: float
) -> PerturbedCameras:
    """Wrong cameras for the true ones [V], with an error of up to `largest` pixels (RMS of each source).

    depth [H, W]: of the reference; where it is unknown, `distance` is used instead.
    """
    true = cameras.to(depth.device, torch.float64)
    count = true.K.shape[0] - 1
    kinds = np.repeat(
        rng.exponential(1, (count, 5)), [3, 3, 1, 2, 1], axis=1
    )  # each source is wrong in its own way
    terms = torch.from_numpy(rng.normal(0, 1, (count, _TERMS)) * kinds)  # in pixels, roughly
    wanted = torch.from_numpy(rng.uniform(0, largest) * rng.uniform(0.5, 1, count))
    terms, wanted = (t.to(depth.device, non_blocking=True) for t in (terms, wanted))
    pixels = true.pixel_grid()[::_STEP, ::_STEP].reshape(-1, 2)
    z = depth[::_STEP, ::_STEP].reshape(-1).double()
    points = true[0].unproject(pixels, torch.where(z > 0, z, distance))
    sources = true[1:]
    # Small errors are linear in the terms, so they can be scaled to the wanted error.
    small = 0.1 * terms
    error = _error(sources, small, points, distance)
    scaled = small * (wanted / error.clamp_min(1e-6))[:, None]
    # A source that sees none of the points stays true.
    terms = torch.where(error[:, None] > 1e-6, scaled, 0.0)
    wrong, distortion = _wrong_cameras(sources, terms, distance)
    K, pose = torch.cat([true.K[:1], wrong.K]), torch.cat([true.cam_from_world[:1], wrong.cam_from_world])
    return PerturbedCameras(replace(true, K=K, cam_from_world=pose), distortion)


def _wrong_cameras(cameras: Camera, terms: Tensor, distance: float) -> tuple[Camera, Tensor]:
    """Cameras [V] changed by terms [V, 10], in pixels roughly, and the distortion of their photos [V]."""
    focal = cameras.K[:, 0, 0]
    half = 0.5 * cameras.width
    zero = torch.zeros_like(focal)
    x, y, z = terms[:, 0] / focal, terms[:, 1] / focal, terms[:, 2] / half
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).view(-1, 3, 3)
    pose = cameras.cam_from_world.clone()
    pose[:, :3] = pose[:, :3] + skew @ (pose[:, :3] + 0.5 * skew @ pose[:, :3])  # a rotation up to angle^3
    pose[:, :3, 3] += terms[:, 3:6] * (distance / focal)[:, None]
    K = cameras.K.clone()
    K[:, :2, :2] *= (1 + terms[:, 6] / half)[:, None, None]
    K[:, :2, 2] += terms[:, 7:9]
    return replace(cameras, K=K, cam_from_world=pose), terms[:, 9]


def _error(cameras: Camera, terms: Tensor, points: Tensor, distance: float) -> Tensor:
    """RMS [V] of the reprojection errors of points [N, 3], over those in the image."""
    wrong, distortion = _wrong_cameras(cameras, terms, distance)
    seen, z = cameras.project(points)  # [V, N, 2], [V, N]
    projected, _ = wrong.project(points)
    squared = (projected - seen - distortion_shift(cameras, distortion, seen)).square().sum(-1)
    inside = (seen >= 0).all(-1) & (seen[..., 0] < cameras.width) & (seen[..., 1] < cameras.height) & (z > 0)
    weight = inside.double() + 1e-9 * (z > 0)  # if none is inside, those in front count
    squared = torch.where(z > 0, squared, 0.0)
    return ((squared * weight).sum(-1) / weight.sum(-1).clamp_min(1e-12)).sqrt()
