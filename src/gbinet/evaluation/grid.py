"""Points sorted into the cells of a regular grid: neighbour search in plain torch, for the GPU.

Cells have one 64-bit key, z in its lowest bits, so that three cells above each other are one run of the
sorted points. All points within one cell size of a query lie in 3 x 3 such runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BITS = 21  # per axis
_MAX_CELLS = (1 << _BITS) - 4  # along one axis, with a border of empty cells
_CANDIDATES = 1 << 24  # pairs of query and point held at a time: some 1.3 GB


class PointGrid:
    """Points [M, 3] (M > 0), float64, sorted by cell. `cell` grows where the extent would need too many."""

    def __init__(self, points: Tensor, cell: float) -> None:
        self._low = points.amin(0)
        extent = points.amax(0) - self._low
        self.cell = max(cell, float(extent.max()) / (_MAX_CELLS - 1))
        self._top = (extent / self.cell).floor().long() + 3  # last cell of the border, per axis
        keys, self.index = self._keys(self._cells(points)).sort()  # index: position in `points`
        self._keys_sorted = keys
        self.points = points[self.index]  # [M, 3]

    def _cells(self, xyz: Tensor) -> Tensor:
        """[N, 3] -> cells; those of points lie in [2, top - 1], far away queries go to the border."""
        cells = ((xyz - self._low) / self.cell).floor().clamp(-2, 2**40).long() + 2
        return torch.minimum(cells.clamp(min=1), self._top)

    @staticmethod
    def _keys(cells: Tensor) -> Tensor:
        x, y, z = cells.unbind(-1)
        return (x << (2 * _BITS)) | (y << _BITS) | z

    def candidates(self, query: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Pairs of a query [N, 3] and a sorted point nearby, in pieces: row of query, row of point, distance.

        Every pair within `self.cell` of each other is among them. All pairs of one query are in one piece.
        """
        cells = self._cells(query)
        columns = torch.tensor(
            [(dx, dy, 0) for dx in (-1, 0, 1) for dy in (-1, 0, 1)], device=query.device, dtype=torch.int64
        )
        centre = self._keys(cells[:, None] + columns)  # [N, 9]
        start = torch.searchsorted(self._keys_sorted, centre - 1)
        count = torch.searchsorted(self._keys_sorted, centre + 1, right=True) - start  # [N, 9]
        ends = count.sum(1).cumsum(0)  # [N]: candidates up to and with this query
        first = 0
        while first < len(query):
            done = int(ends[first - 1]) if first else 0
            last = int(torch.searchsorted(ends, done + _CANDIDATES, right=True))
            last = max(last, first + 1)
            yield self._expand(query, start[first:last], count[first:last], first)
            first = last

    def _expand(
        self, query: Tensor, start: Tensor, count: Tensor, first: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Runs [n, 9] of the queries from `first` on -> one row per candidate."""
        sizes = count.flatten()
        run = torch.arange(len(sizes), device=query.device).repeat_interleave(sizes)  # [C]
        within = torch.arange(len(run), device=query.device) - (sizes.cumsum(0) - sizes)[run]
        row, point = first + run // 9, start.flatten()[run] + within
        return row, point, (query[row] - self.points[point]).norm(dim=1)


def nearest_in_grid(grid: PointGrid, query: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Distance and index [N] of the nearest point no further than radius <= grid.cell; else inf and -1."""
    distance = torch.full((len(query),), torch.inf, dtype=query.dtype, device=query.device)
    index = torch.full((len(query),), -1, dtype=torch.int64, device=query.device)
    for row, point, d in grid.candidates(query):
        near = d <= radius
        row, point, d = row[near], point[near], d[near]
        distance.scatter_reduce_(0, row, d, reduce="amin")
        best = d == distance[row]
        index[row[best]] = grid.index[point[best]]
    return distance, index


def nearest(query: Tensor, points: Tensor, max_distance: float) -> tuple[Tensor, Tensor]:
    """Distance and index of the nearest of `points` for every query, by grids of growing cells."""
    distance = torch.full((len(query),), torch.inf, dtype=query.dtype, device=query.device)
    index = torch.full((len(query),), -1, dtype=torch.int64, device=query.device)
    low = torch.minimum(query.amin(0), points.amin(0))
    reach = float((torch.maximum(query.amax(0), points.amax(0)) - low).norm())  # no distance is larger
    last = min(max_distance, reach)
    extent = float((points.amax(0) - points.amin(0)).norm())
    radius = min(last, 2 * extent / len(points) ** 0.5)  # about the spacing of points on a surface
    open_rows = torch.arange(len(query), device=query.device)
    while len(open_rows):
        radius = max(radius, last * 1e-6)  # all points in one place have no spacing
        grid = PointGrid(points, radius)
        distance[open_rows], index[open_rows] = nearest_in_grid(grid, query[open_rows], radius)
        open_rows = open_rows[index[open_rows] < 0]
        if radius >= last:
            break
        radius = min(2 * radius, last)
    return distance, index


def pairs_within(points: Tensor, radius: float) -> Tensor:
    """All pairs (i, j), i < j, of points no further apart than radius, [P, 2]."""
    grid = PointGrid(points, radius)
    found = []
    for row, point, d in grid.candidates(points):
        other = grid.index[point]
        keep = (d <= radius) & (row < other)
        found.append(torch.stack([row[keep], other[keep]], dim=1))
    return torch.cat(found) if found else torch.zeros(0, 2, dtype=torch.int64, device=points.device)
