"""Nearest neighbours and thinning of large clouds in bounded memory, on the CPU or the GPU.

On the CPU a k-d tree of scipy answers (all cores); on a GPU, and where scipy is not installed, the grid of
gbinet.evaluation.grid. Both are exact.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import InputError
from gbinet.evaluation import grid
from gbinet.progress import Progress

Points = NDArray[np.floating[Any]]  # [N, 3] float32 or float64

_CHUNK = 1 << 20  # queries at a time
_FIRST_BATCH = 1 << 10  # thinning: small, because all points of the first batch may be within the radius
_LARGEST_BATCH = 1 << 22


class Neighbours(Protocol):
    """Points prepared for searches."""

    def nearest(
        self, query: Points, max_distance: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]: ...

    def pairs(self, radius: float) -> NDArray[np.int64]: ...


class TreeNeighbours:
    """Search by scipy's k-d tree."""

    def __init__(self, points: Points) -> None:
        from scipy.spatial import cKDTree

        # The sliding-midpoint tree is built three times as fast as the balanced one and answers as fast.
        self._tree = cKDTree(points.astype(np.float64, copy=False), balanced_tree=False, compact_nodes=False)

    def nearest(self, query: Points, max_distance: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Distance and index of the nearest point, no further than max_distance; else inf and -1."""
        # The tree's bound is exclusive, ours inclusive.
        bound = np.nextafter(max_distance, np.inf)
        order = _along_cells(query)  # neighbours after each other: the tree's nodes stay in the cache
        d, i = self._tree.query(query[order].astype(np.float64), distance_upper_bound=bound, workers=-1)
        distance, index = np.empty(len(query)), np.empty(len(query), np.int64)
        distance[order], index[order] = d, np.where(np.isinf(d), -1, i)
        return distance, index

    def pairs(self, radius: float) -> NDArray[np.int64]:
        """All pairs (i, j), i < j, no further apart than radius, [P, 2]."""
        found: NDArray[np.int64] = self._tree.query_pairs(radius, output_type="ndarray")
        return np.sort(found, axis=1)


class GridNeighbours:
    """Search by the grid, on any device of torch."""

    def __init__(self, points: Points, device: torch.device | str) -> None:
        self._points = torch.from_numpy(np.ascontiguousarray(points)).to(device).double()

    def nearest(self, query: Points, max_distance: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        if len(query) == 0:
            return np.zeros(0), np.zeros(0, np.int64)
        on_device = torch.from_numpy(np.ascontiguousarray(query)).to(self._points.device).double()
        distance, index = grid.nearest(on_device, self._points, max_distance)
        return distance.cpu().numpy(), index.cpu().numpy()

    def pairs(self, radius: float) -> NDArray[np.int64]:
        found: NDArray[np.int64] = grid.pairs_within(self._points, radius).cpu().numpy()
        return found


def neighbours(points: Points, device: torch.device | str = "cpu") -> Neighbours:
    """The fastest search on this device."""
    if len(points) == 0:
        raise InputError("cannot search for neighbours in a cloud without points")
    if torch.device(device).type == "cpu" and importlib.util.find_spec("scipy"):
        return TreeNeighbours(points)
    return GridNeighbours(points, device)


def nearest_distances(
    query: Points,
    target: Points,
    *,
    max_distance: float = math.inf,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    what: str = "distances",
) -> NDArray[np.float64]:
    """Distance from every query point to the nearest target point; inf beyond max_distance."""
    search = neighbours(target, device)
    distances = np.empty(len(query))
    for start in range(0, len(query), _CHUNK):
        piece = slice(start, start + _CHUNK)
        distances[piece] = search.nearest(query[piece], max_distance)[0]
        if progress:
            progress(min(start + _CHUNK, len(query)), len(query), what)
    return distances


def thin(
    points: Points,
    radius: float,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> NDArray[np.int64]:
    """Indices of the points that greedy thinning keeps.

    Points are visited in a random order; one that is still alive is kept and deletes all others no further
    than radius. The result is that of the plain loop, computed in batches: first the points that kept ones of
    earlier batches delete, found by their nearest kept point; then those of the batch among each other.
    """
    if not radius > 0:
        raise InputError(f"the thinning radius must be positive, got {radius:g}")
    order = np.random.default_rng(seed).permutation(len(points))
    kept: NDArray[np.int64] = np.zeros(0, np.int64)
    visited, size = 0, _FIRST_BATCH
    while visited < len(points):
        batch = order[visited : visited + size]
        if len(kept):
            distances = nearest_distances(points[batch], points[kept], max_distance=radius, device=device)
            batch = batch[np.isinf(distances)]
        if len(batch):
            pairs = neighbours(points[batch], device).pairs(radius)
            kept = np.concatenate([kept, batch[_greedy(len(batch), pairs)]])
        visited = min(visited + size, len(points))
        size = min(visited, _LARGEST_BATCH)  # as many as before: few pairs within a batch, few search trees
        if progress:
            progress(visited, len(points), f"thinning at {radius:g}")
    return kept


def _greedy(count: int, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of points 0, 1, 2, ... each is kept unless a kept earlier one is its partner; pairs (i, j) have i < j.

    In rounds: a point none of whose earlier partners is alive is kept, and its later partners die. With a
    random order the chains are short, so the rounds are few.
    """
    alive = np.ones(count, dtype=bool)
    kept = np.zeros(count, dtype=bool)
    while alive.any():
        has_earlier = np.zeros(count, dtype=bool)  # a partner that is alive
        has_earlier[pairs[:, 1]] = True
        new = alive & ~has_earlier
        kept |= new
        alive &= ~new
        alive[pairs[new[pairs[:, 0]], 1]] = False
        pairs = pairs[alive[pairs[:, 0]] & alive[pairs[:, 1]]]
    return kept


def _along_cells(points: Points) -> NDArray[np.int64]:
    """An order in which points of one cell of a coarse grid (1024 along the longest side) are together."""
    if len(points) == 0:
        return np.zeros(0, np.int64)
    low = points.min(axis=0).astype(np.float64)
    extent = float((points.max(axis=0) - low).max())
    cells = ((points - low) * (1023 / extent if extent > 0 else 0.0)).astype(np.int64)
    keys = (cells[:, 0] << 20) | (cells[:, 1] << 10) | cells[:, 2]
    return np.argsort(keys, kind="stable")
