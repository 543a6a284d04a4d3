"""Sparse points of a rendered scene, like those of structure from motion: few, with gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.scene import SparsePoints

_TRIES = 6  # points drawn for each that is wanted
_WAVES = 8  # random waves whose sum says where the gaps are
_GAPS_ACROSS = 2.0  # waves over the extent of the scene


def sparse_points(
    cameras: Sequence[Camera],
    depths: Sequence[Tensor],  # true depth of each view, [H, W], 0 = none
    per_view: int,
    gaps: float,  # share of the points that are lost in blobs of space without any
    random: np.random.Generator,
) -> SparsePoints:
    """About `per_view` points for each view, all of them seen by two views or more."""
    exact = [camera.to("cpu", torch.float64) for camera in cameras]
    xyz = torch.cat([_drawn(c, d, per_view * _TRIES, random) for c, d in zip(exact, depths, strict=True)])
    if len(xyz) == 0:
        return SparsePoints(xyz)
    xyz = xyz[_outside_gaps(xyz, gaps, random)]
    seen = torch.stack([_sees(c, d, xyz) for c, d in zip(exact, depths, strict=True)], 1)  # [N, V]
    order = torch.from_numpy(random.permutation(len(xyz)))
    order = order[seen[order].sum(1) >= 2]
    count = torch.zeros(len(exact), dtype=torch.int64)
    chosen = []
    for point in order.tolist():
        if bool((count[seen[point]] < per_view).any()):
            chosen.append(point)
            count += seen[point]
    seen = seen[chosen]
    start = torch.cat([torch.zeros(1, dtype=torch.int64), seen.sum(1).cumsum(0)])
    return SparsePoints(xyz[chosen], None, seen.nonzero()[:, 1], start)


def _drawn(camera: Camera, depth: Tensor, count: int, random: np.random.Generator) -> Tensor:
    """Random surface points of one view, [N, 3]."""
    pixels = (depth > 0).nonzero()  # [N, 2] row, column
    if len(pixels) == 0:
        return torch.zeros(0, 3, dtype=torch.float64)
    rows, columns = pixels[torch.from_numpy(random.integers(0, len(pixels), count))].T
    return camera.unproject(camera.pixel_grid()[rows, columns].double(), depth[rows, columns].double())


def _outside_gaps(xyz: Tensor, gaps: float, random: np.random.Generator) -> Tensor:
    extent = float((xyz.quantile(0.95, 0) - xyz.quantile(0.05, 0)).norm())
    waves = torch.from_numpy(random.normal(size=(3, _WAVES))) * (2 * math.pi * _GAPS_ACROSS / extent)
    height = torch.cos(xyz @ waves + torch.from_numpy(random.uniform(0, 2 * math.pi, _WAVES))).sum(1)
    return height <= height.quantile(1 - gaps)


def _sees(camera: Camera, depth: Tensor, xyz: Tensor) -> Tensor:
    """[N] whether a view shows these points: they lie on its surface."""
    pixel, z = camera.project(xyz)
    inside = (z > 0) & (pixel >= 0).all(-1) & (pixel[:, 0] < camera.width) & (pixel[:, 1] < camera.height)
    column = pixel[:, 0].nan_to_num().clamp(0, camera.width - 1).long()
    row = pixel[:, 1].nan_to_num().clamp(0, camera.height - 1).long()
    return inside & ((depth[row, column] - z).abs() < 0.02 * z)
