"""The nearest of many points to each of them, without a table of all pairs."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAF = 1024  # points that are compared with each other at once; so many have one leaf, and one table


def nearest(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Distances and indices of the `count` nearest others of each point, nearest first.

    points [N, 3] -> [N, count] each; count < N. Exact: points are sorted into boxes, and a box is compared
    with others, the nearest first, until no point outside can be nearer.
    """
    leaves = boxes(points, torch.arange(len(points)), _LEAF)
    low = torch.stack([points[leaf].amin(0) for leaf in leaves])  # [L, 3]
    high = torch.stack([points[leaf].amax(0) for leaf in leaves])
    distances = points.new_empty(len(points), count)
    indices = torch.empty(len(points), count, dtype=torch.int64)
    for number, leaf in enumerate(leaves):
        gap = (torch.maximum(low - high[number], low[number] - high).clamp(min=0)).norm(dim=-1)  # [L]
        gap[number] = -1  # itself first
        found, others = points.new_empty(len(leaf), 0), torch.empty(len(leaf), 0, dtype=torch.int64)
        for other in gap.argsort().tolist():
            if found.shape[1] == count and float(found[:, -1].max()) < float(gap[other]):
                break
            away = torch.cdist(points[leaf], points[leaves[other]])
            if other == number:
                away.fill_diagonal_(torch.inf)
            found = torch.cat([found, away], 1)
            others = torch.cat([others, leaves[other].expand(len(leaf), -1)], 1)
            found, chosen = found.topk(min(count, found.shape[1]), largest=False)
            others = others.gather(1, chosen)
        distances[leaf], indices[leaf] = found, others
    return distances, indices


def boxes(points: Tensor, members: Tensor, most: int) -> list[Tensor]:
    """Members (indices) in groups of so many at most that lie together, split at medians of long sides."""
    if len(members) <= most:
        return [members]
    here = points[members]
    axis = int((here.amax(0) - here.amin(0)).argmax())
    order = members[here[:, axis].argsort(stable=True)]
    half = len(order) // 2
    return [box for part in (order[:half], order[half:]) for box in boxes(points, part.sort().values, most)]
