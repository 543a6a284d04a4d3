"""Cameras that are slightly wrong, as structure from motion leaves them.

The reference and its depth stay true. The network is given slightly wrong poses, focal lengths and principal
points for the source views, whose photos keep a little distortion. How wrong is measured where it matters:
how far the points that the reference sees are projected from where the source views show them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import Camera
from gbinet.render.chance import Chance

_STEP = 4  # every so many pixels of the reference the error is measured
_TERMS = 10  # rotation 3, translation 3, focal length 1, principal point 2, distortion 1


@dataclass(frozen=True)
class PerturbedCameras:
    """The cameras that the network is given for a sample, and the distortion that their photos keep."""

    cameras: Camera  # [V] float64; the first is true
    bend: Tensor  # [V - 1] shift of the sources' pixels at half a diagonal from the centre, in pixels

    def bent(self, images: Tensor) -> Tensor:
        """Photos [V, 3, H, W] with the distortion that nobody has taken out of the sources."""
        height, width = images.shape[-2:]
        pixels = self.cameras[0].pixel_grid()[None]  # [1, H, W, 2]
        from_here = pixels - bending(self.cameras[1:], self.bend, pixels)
        grid = torch.stack([from_here[..., 0] / width, from_here[..., 1] / height], -1) * 2 - 1
        sources = F.grid_sample(images[1:], grid.to(images.dtype), "bicubic", "border", align_corners=False)
        return torch.cat([images[:1], sources.clamp_min(0)])


def bending(cameras: Camera, bend: Tensor, pixels: Tensor) -> Tensor:
    """Radial shift [V, ..., 2] of pixels [V or 1, ..., 2]: `bend` pixels half a diagonal from the centre."""
    ones = [1] * (pixels.dim() - 2)
    centre = cameras.K[:, :2, 2].view(-1, *ones, 2)
    away = (pixels - centre) / (0.5 * float(np.hypot(cameras.width, cameras.height)))
    return bend.view(-1, *ones, 1) * away * away.square().sum(-1, keepdim=True)


def perturb(rng: Chance, cameras: Camera, depth: Tensor, distance: float, largest: float) -> PerturbedCameras:
    """Wrong cameras for the true ones [V], with an error of up to `largest` pixels (RMS of each source).

    depth [H, W] is that of the reference; where there is none, `distance` stands in.
    """
    true = cameras.to(depth.device, torch.float64)
    count = true.K.shape[0] - 1
    kinds = np.repeat(rng.exponential(1, (count, 5)), [3, 3, 1, 2, 1], axis=1)  # what is wrong most differs
    terms = torch.from_numpy(rng.normal(0, 1, (count, _TERMS)) * kinds)  # in pixels, about
    wanted = torch.from_numpy(rng.uniform(0, largest) * rng.uniform(0.5, 1, count))
    terms, wanted = (t.to(depth.device, non_blocking=True) for t in (terms, wanted))
    pixels = true.pixel_grid()[::_STEP, ::_STEP].reshape(-1, 2)
    z = depth[::_STEP, ::_STEP].reshape(-1).double()
    points = true[0].unproject(pixels, torch.where(z > 0, z, distance))
    sources = true[1:]
    # The error is linear in the terms as long as it is small: from a small one to the wanted one.
    small = 0.1 * terms
    found = _error(sources, small, points, distance)
    grown = small * (wanted / found.clamp_min(1e-6))[:, None]
    # A source before which nothing lies has no error to grow: it is given as it is.
    terms = torch.where(found[:, None] > 1e-6, grown, 0.0)
    wrong, bend = _wrong(sources, terms, distance)
    K, pose = torch.cat([true.K[:1], wrong.K]), torch.cat([true.cam_from_world[:1], wrong.cam_from_world])
    return PerturbedCameras(replace(true, K=K, cam_from_world=pose), bend)


def _wrong(cameras: Camera, terms: Tensor, distance: float) -> tuple[Camera, Tensor]:
    """Cameras [V] changed by terms [V, 10], which are about pixels, and the bend of their photos [V]."""
    focal = cameras.K[:, 0, 0]
    half = 0.5 * cameras.width
    zero = torch.zeros_like(focal)
    x, y, z = terms[:, 0] / focal, terms[:, 1] / focal, terms[:, 2] / half
    spin = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).view(-1, 3, 3)
    pose = cameras.cam_from_world.clone()
    pose[:, :3] = pose[:, :3] + spin @ (pose[:, :3] + 0.5 * spin @ pose[:, :3])  # a rotation up to angle^3
    pose[:, :3, 3] += terms[:, 3:6] * (distance / focal)[:, None]
    K = cameras.K.clone()
    K[:, :2, :2] *= (1 + terms[:, 6] / half)[:, None, None]
    K[:, :2, 2] += terms[:, 7:9]
    return replace(cameras, K=K, cam_from_world=pose), terms[:, 9]


def _error(cameras: Camera, terms: Tensor, points: Tensor, distance: float) -> Tensor:
    """RMS [V] of how far points [N, 3] are projected from where they are seen, over those in the image."""
    wrong, bend = _wrong(cameras, terms, distance)
    seen, z = cameras.project(points)  # [V, N, 2], [V, N]
    projected, _ = wrong.project(points)
    off = (projected - seen - bending(cameras, bend, seen)).square().sum(-1)
    inside = (seen >= 0).all(-1) & (seen[..., 0] < cameras.width) & (seen[..., 1] < cameras.height) & (z > 0)
    weight = inside.double() + 1e-9 * (z > 0)  # where nothing is inside, what is in front
    off = torch.where(z > 0, off, 0.0)
    return ((off * weight).sum(-1) / weight.sum(-1).clamp_min(1e-12)).sqrt()
