"""Bilinear sampling of maps on a CPU, zero outside, without gradients: rows of channels instead of maps.

torch's grid_sample gathers numbers one by one, and uses one core for one image. Here a map is a table with a
row of channels per pixel, and a sample is a weighted sum of four rows, which torch's embedding bags compute
with vector instructions and on all cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import CENTRE

BORDER = 1 - CENTRE  # added to a position in the map, gives that in its table in units of rows and columns
_EXACT = 1 << 24  # float32 holds all integers up to here


@dataclass(frozen=True)
class RowTable:
    """A map with a border of zeros around it, one pixel to the left and above, two to the right and below."""

    rows: Tensor  # [(height + 3) * (width + 3), C] float32
    width: int
    height: int


def table(features: Tensor) -> RowTable:
    """The table of a map [C, h, w]."""
    channels, height, width = features.shape
    rows = torch.zeros(height + 3, width + 3, channels)
    rows[1:-2, 1:-2] = features.permute(1, 2, 0)
    return RowTable(rows.flatten(0, 1), width, height)


def sample(features: RowTable, x: Tensor, y: Tensor) -> Tensor:
    """Values [N, C] at positions x, y [N] float32, which are overwritten.

    Positions count pixels of the map, from 0 to its width and height, plus BORDER.
    """
    stride, count = features.width + 3, len(x)
    x.clamp_(0, features.width + 1)
    y.clamp_(0, features.height + 1)
    left, top = x.floor(), y.floor()
    x.sub_(left)
    y.sub_(top)
    if len(features.rows) > _EXACT:
        left, top = left.double(), top.double()
    corner = left.add_(top, alpha=stride).nan_to_num_(0).to(torch.int32)  # the weights keep NaN
    index, weight = corner.new_empty(count, 4), x.new_empty(count, 4)
    for column, step in enumerate((0, 1, stride, stride + 1)):
        torch.add(corner, step, out=index[:, column])
    both = x * y
    weight[:, 3] = both
    torch.sub(y, both, out=weight[:, 2])
    torch.sub(x, both, out=weight[:, 1])
    torch.sub(1 - y, x.sub_(both), out=weight[:, 0])
    first = torch.arange(0, 4 * count + 1, 4, dtype=torch.int32)
    return F.embedding_bag(
        index.flatten(), features.rows, first, mode="sum",
        per_sample_weights=weight.flatten(), include_last_offset=True,
    )  # fmt: skip
