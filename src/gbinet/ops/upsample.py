"""Upsampling of a map of cells: bilinear, but not across depth edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops


def upsample_cells(cells: Tensor, edge: int) -> Tensor:
    """Cells [B, h, w] at twice the size, [B, 2 h, 2 w] int32.

    Bilinear among those of the four nearest that differ from the pixel's own cell by `edge` at most.
    """
    if ops.usable(cells):
        from gbinet.ops import upsample_triton

        return upsample_triton.upsample_cells(cells, edge)
    return upsample_cells_plain(cells, edge)


def upsample_cells_plain(cells: Tensor, edge: int) -> Tensor:
    height, width = cells.shape[1:]
    padded = F.pad(cells[:, None].float(), (1, 1, 1, 1), mode="replicate")[:, 0]

    def shifted(offsets: tuple[tuple[int, int], ...]) -> Tensor:
        """For the four finer pixels of each cell, [B, 4, h, w]: the cell so many rows and columns away."""
        return torch.stack(
            [padded[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in offsets], dim=1
        )

    own = padded[:, None, 1:-1, 1:-1]
    total, weights = 9 * own, torch.full_like(own, 9)
    for weight, offsets in (  # of the upper left pixel, upper right, lower left, lower right
        (3, ((0, -1), (0, 1), (0, -1), (0, 1))),
        (3, ((-1, 0), (-1, 0), (1, 0), (1, 0))),
        (1, ((-1, -1), (-1, 1), (1, -1), (1, 1))),
    ):
        other = shifted(offsets)
        share = weight * ((other - own).abs() <= edge).float()
        total, weights = total + share * other, weights + share
    return F.pixel_shuffle((total / weights + 0.5).floor(), 2)[:, 0].to(cells.dtype)
