"""Enlarging a map of cells: bilinear, but not across depth edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops


def doubled(cell: Tensor, edge: int) -> Tensor:
    """Cells [B, h, w] at twice the size, [B, 2 h, 2 w]: bilinear among those within `edge` of the own one."""
    if ops.usable(cell):
        from gbinet.ops.enlarge_triton import double

        return double(cell, edge)
    return doubled_plain(cell, edge)


def doubled_plain(cell: Tensor, edge: int) -> Tensor:
    height, width = cell.shape[1:]
    padded = F.pad(cell[:, None].float(), (1, 1, 1, 1), mode="replicate")[:, 0]

    def neighbours(places: tuple[tuple[int, int], ...]) -> Tensor:
        """Of the four finer pixels of each cell, [B, 4, h, w]: the cells this many rows and columns away."""
        return torch.stack(
            [padded[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in places], dim=1
        )

    own = padded[:, None, 1:-1, 1:-1]
    total, weight = 9 * own, torch.full_like(own, 9)  # an upper left pixel looks up and left, and so on
    for part, places in (
        (3, ((0, -1), (0, 1), (0, -1), (0, 1))),
        (3, ((-1, 0), (-1, 0), (1, 0), (1, 0))),
        (1, ((-1, -1), (-1, 1), (1, -1), (1, 1))),
    ):
        other = neighbours(places)
        share = part * ((other - own).abs() <= edge).float()
        total, weight = total + share * other, weight + share
    return F.pixel_shuffle((total / weight + 0.5).floor(), 2)[:, 0].to(cell.dtype)
