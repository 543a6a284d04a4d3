"""Bins of depth as a few numbers, from which kernels compute depths too. model/search.py splits them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bins:
    """For every pixel some adjacent bins; each is one of `cells` equal parts of a range of depth."""

    cell: Tensor  # [B, H, W] int32: the first bin is factor * cell + shift; apart: [B, D, H, W], the bins
    factor: int
    shift: int
    count: int  # bins of a pixel, D
    cells: int  # that the whole range is cut into
    depth_range: Tensor  # [B, 2]: near, far
    inverse: bool  # cells are equal in 1/depth instead of depth
    apart: bool = False  # the bins of a pixel are any cells, not adjacent ones

    @property
    def first(self) -> Tensor:
        """Index of the first bin, [B, H, W]; bins may lie outside the range at both ends."""
        return self.factor * self.cell + self.shift

    def borders(self) -> Tensor:
        """Borders of adjacent bins as positions in the range, [B, D + 1, H, W] in [0, 1].

        Bins outside the range have zero width.
        """
        index = torch.arange(self.count + 1, device=self.cell.device, dtype=torch.int32)
        border = self.first[:, None] + index[:, None, None]  # [B, D + 1, H, W]
        return border.clamp(0, self.cells).float() / self.cells

    def depths(self) -> Tensor:
        """Depths of the bins' centres, [B, D, H, W]."""
        if self.apart:
            position = (self.cell.float() + 0.5) / self.cells
        else:
            borders = self.borders()
            position = (borders[:, 1:] + borders[:, :-1]) / 2
        return to_depth(position, self.depth_range, self.inverse)


def to_depth(position: Tensor, depth_range: Tensor, inverse: bool) -> Tensor:
    """Position in [0, 1] -> depth. position [B, ...], depth_range [B, 2]."""
    near, far = _bounds(position, depth_range)
    if inverse:
        # As a mean of 1/near and 1/far: a single fraction would suffer cancellation near `far`.
        return 1 / ((1 - position) / near + position / far)
    return near + position * (far - near)


def to_position(depth: Tensor, depth_range: Tensor, inverse: bool) -> Tensor:
    """Depth -> position in [0, 1] (outside for depths outside the range)."""
    near, far = _bounds(depth, depth_range)
    if inverse:
        return far * (depth - near) / (depth * (far - near))
    return (depth - near) / (far - near)


def _bounds(like: Tensor, depth_range: Tensor) -> tuple[Tensor, Tensor]:
    """near and far [B, 1, ...], shaped to broadcast against `like` [B, ...]."""
    shape = (-1,) + (1,) * (like.dim() - 1)
    return depth_range[:, 0].reshape(shape), depth_range[:, 1].reshape(shape)
