"""The nearest of many points to each of them, without a table of all pairs."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAF = 1024  # points of a box, at most; those of two boxes are compared at once


def nearest(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Distances and indices of the `count` nearest others of each point, nearest first.

    points [N, 3] -> [N, count] each; count < N. Exact: points are sorted into boxes, and a box is compared
    with others, the nearest first, until no point outside can be nearer.
    """
    boxes = split_into_boxes(points, torch.arange(len(points)), _LEAF)
    low = torch.stack([points[box].amin(0) for box in boxes])  # [B, 3]
    high = torch.stack([points[box].amax(0) for box in boxes])
    distances = points.new_empty(len(points), count)
    indices = torch.empty(len(points), count, dtype=torch.int64)
    for number, box in enumerate(boxes):
        gap = (torch.maximum(low - high[number], low[number] - high).clamp(min=0)).norm(dim=-1)  # [B]
        gap[number] = -1  # itself first
        # The nearest so far of each point of the box: distances and indices, [P, up to count] each.
        best, best_index = points.new_empty(len(box), 0), torch.empty(len(box), 0, dtype=torch.int64)
        for other in gap.argsort().tolist():
            if best.shape[1] == count and float(best[:, -1].max()) < float(gap[other]):
                break
            between = torch.cdist(points[box], points[boxes[other]])
            if other == number:
                between.fill_diagonal_(torch.inf)
            best = torch.cat([best, between], 1)
            best_index = torch.cat([best_index, boxes[other].expand(len(box), -1)], 1)
            best, chosen = best.topk(min(count, best.shape[1]), largest=False)
            best_index = best_index.gather(1, chosen)
        distances[box], indices[box] = best, best_index
    return distances, indices


def split_into_boxes(points: Tensor, indices: Tensor, max_size: int) -> list[Tensor]:
    """Groups of at most `max_size` of the indexed points, split at the median of their longest side."""
    if len(indices) <= max_size:
        return [indices]
    chosen = points[indices]
    axis = int((chosen.amax(0) - chosen.amin(0)).argmax())
    order = indices[chosen[:, axis].argsort(stable=True)]
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    return [box for half in halves for box in split_into_boxes(points, half.sort().values, max_size)]
