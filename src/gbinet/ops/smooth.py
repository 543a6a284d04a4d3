"""Averaging the fractional cells of a stage over neighbours on the same surface.

Every pixel is searched independently, so its result has noise of its own: from the image, and from where the
true depth lies between the borders of bins, which on a slanted plane changes from row to row. Neighbours
share the surface but not that noise. In inverse depth a plane is linear in the image, so that the mean over a
disc around a pixel is the plane's depth at that pixel: away from the image's border only curvature is
flattened.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops

MOST_RADIUS = 16  # px


def disc(radius: int) -> list[tuple[int, int]]:
    """Offsets (row, column) of the pixels within a radius."""
    reach = range(-radius, radius + 1)
    return [(y, x) for y in reach for x in reach if x * x + y * y <= radius * (radius + 1)]


def smoothed(values: Tensor, radius: int, reach: float) -> Tensor:
    """values [B, H, W] float32 -> their means over discs, [B, H, W]; the border is repeated beyond itself.

    A neighbour's weight falls with how far its value is from the pixel's own, to nothing at `reach`
    (Tukey's biweight): the other side of a depth edge, and outliers, are left out.
    """
    if ops.usable(values):
        from gbinet.ops.smooth_triton import smooth

        return smooth(values, radius, reach)
    return smoothed_plain(values, radius, reach)


def smoothed_plain(values: Tensor, radius: int, reach: float) -> Tensor:
    height, width = values.shape[-2:]
    padded = F.pad(values[:, None], (radius,) * 4, mode="replicate")[:, 0]
    total, weights = torch.zeros_like(values), torch.zeros_like(values)
    for y, x in disc(radius):
        difference = padded[:, radius + y : radius + y + height, radius + x : radius + x + width] - values
        weight = (difference / reach).square_().neg_().add_(1).clamp_(min=0).square_()
        weights += weight
        total += weight.mul_(difference)  # not values: of thousands of cells float32 keeps few digits
    return values + total / weights  # a pixel's own weight is 1
