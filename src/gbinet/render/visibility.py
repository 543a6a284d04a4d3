"""Which sources see what the reference sees: ground truth for view weights."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet.camera import Camera

SLACK = 0.002  # of the depth: two depths this close are one surface
STEEPEST = 0.05  # of the depth within half a pixel: what changes more is an edge on all sides, such as a wire
_FAR = 1e30  # depth of a pixel that sees nothing


def visible_in_sources(cameras: Camera, depth: Tensor, surfaces: Tensor) -> Tensor:
    """[V - 1, H, W] bool: does a source see the surface point of this pixel of the reference?

    cameras [V]; depth [H, W] of the reference, 0 = none (then the result is False); surfaces [V, h, w] are
    depths of all views, of any resolution, infinite where there is nothing.
    """
    true = cameras.to(depth.device, torch.float64)
    rows, columns = surfaces.shape[-2:]
    points = true[0].unproject(true.pixel_grid().reshape(-1, 2), depth.reshape(-1).double())
    pixel, z = true[1:].project(points)  # [V - 1, N, 2], [V - 1, N]
    x, y = pixel[..., 0] / cameras.width, pixel[..., 1] / cameras.height  # from 0 to 1 in the image
    inside = (z > 0) & (x >= 0) & (x < 1) & (y >= 0) & (y < 1) & (depth.reshape(-1) > 0)
    x, y = torch.where(inside, x, 0.0), torch.where(inside, y, 0.0)
    index = (y * rows).long() * columns + (x * columns).long()
    front = surfaces[1:].clamp_max(_FAR)
    nearest = front.flatten(1).gather(1, index)
    slope = _slope(front).flatten(1).gather(1, index)
    slope = torch.minimum(slope, STEEPEST * nearest)
    seen = inside & (z <= nearest + slope + SLACK * nearest)
    return seen.view(-1, *depth.shape)


def _slope(surface: Tensor) -> Tensor:
    """How much depth [V, h, w] changes within half a pixel, on the flatter side: edges are not slopes."""
    total = torch.zeros_like(surface)
    for axis in (1, 2):
        step = surface.diff(dim=axis).abs()
        if step.shape[axis] == 0:
            continue
        before = torch.cat([step.narrow(axis, 0, 1), step], axis)
        behind = torch.cat([step, step.narrow(axis, step.shape[axis] - 1, 1)], axis)
        total = total + 0.5 * torch.minimum(before, behind)
    return total
