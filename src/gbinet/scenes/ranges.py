"""Depth ranges that hold the scene: from measured depth, from points, or from cameras alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.scene import DepthRange, SparsePoints
from gbinet.scenes.nearest import nearest
from gbinet.scenes.neighbours import camera_batch, observations

# ---- from measured depth -----------------------------------------------------------------------------------

_LOW_QUANTILE, _HIGH_QUANTILE = 0.01, 0.99  # depths beyond these may lie outside the range
_MARGIN = 0.2  # of the extent, on both sides
_FLAT_MARGIN = 0.03  # of the depth itself, for flat things seen from the front
_MAX_MARGIN = 0.25  # of the depth itself
_FEW_DEPTHS = 20  # with fewer depths, the margin is the largest


def range_from_depths(depths: Tensor) -> DepthRange | None:
    """A range that holds nearly all of these depths, with a margin; None if none of them is usable."""
    depths = _usable(depths)
    if len(depths) == 0:
        return None
    depths = depths[:: max(1, len(depths) // 1_000_000)].sort().values
    # Outwards, never between two depths: a few far-apart points must not lose their ends.
    low = float(depths[math.floor(_LOW_QUANTILE * (len(depths) - 1))])
    high = float(depths[math.ceil(_HIGH_QUANTILE * (len(depths) - 1))])
    if len(depths) < _FEW_DEPTHS:
        return DepthRange((1 - _MAX_MARGIN) * low, (1 + _MAX_MARGIN) * high)
    # A wide extent often comes from a few far things; they must not push the near end to the camera.
    margin = _MARGIN * (high - low)
    near_margin = min(margin + _FLAT_MARGIN * low, _MAX_MARGIN * low)
    far_margin = min(margin + _FLAT_MARGIN * high, _MAX_MARGIN * high)
    return DepthRange(low - near_margin, high + far_margin)


def _usable(depths: Tensor) -> Tensor:
    return depths[torch.isfinite(depths) & (depths > 0)].double()


# ---- from points of structure from motion ------------------------------------------------------------------
#
# Points lie where photos have texture that many of them share. Trees, wires and objects in the foreground
# often have none, and neither have plain walls behind them. So a range is far wider than its points. The
# network's bins are equal in 1/depth, where this costs little, and far away nearly nothing.

_NEAR_FACTOR = 1.6  # depth of the nearest point over that of the near end
# Depth of the far end over that of the farthest point: least and most; the more points, the less.
_FAR_FACTORS = (1.4, 3.0)
_FEW_POINTS = 100  # with which the far factor is the largest
_OUTLIERS = 0.005  # share of the points at either end that may be wrong
# A near point is wrong too if its depth is less than this times that of the second next one.
_ISOLATED = 0.33
_MAX_ISOLATED = 0.03  # share of the points that may be dropped for this reason
# Points that only other views observe may be hidden: they count up to so many times the view's own far end.
_MAX_UNSEEN = 2.0
_RELIABLE_VIEWS = 3  # a point that so many views observe is reliable
_ENOUGH_RELIABLE = 500  # with so many reliable points, the others are not used
_MAX_POINTS = 20_000  # of a scene that are looked at for each view


def ranges_from_points(cameras: Sequence[Camera], points: SparsePoints) -> list[DepthRange | None]:
    """Depth range of each view from the points that it observes, and all others in its frustum."""
    if points.view_index is None or points.track_start is None:
        some = points.xyz[:: max(1, len(points.xyz) // _MAX_POINTS)]
        in_view = _PointsInView(cameras, some)
        return [_widened(_extent_of(in_view.depths(index)), None) for index in range(len(cameras))]
    point, view = observations(points)
    reliable = torch.bincount(point, minlength=len(points.xyz)) >= _RELIABLE_VIEWS  # [P]
    order = view.argsort(stable=True)
    bounds = torch.searchsorted(view[order], torch.arange(len(cameras) + 1))  # [V + 1]
    candidates = points.xyz[reliable] if int(reliable.sum()) >= _ENOUGH_RELIABLE else points.xyz
    candidates = candidates[:: max(1, len(candidates) // _MAX_POINTS)]
    in_view = _PointsInView(cameras, candidates)

    def range_of(index: int) -> DepthRange | None:
        observed = point[order[bounds[index] : bounds[index + 1]]]
        if int(reliable[observed].sum()) >= _ENOUGH_RELIABLE:
            observed = observed[reliable[observed]]
        z_axis = cameras[index].cam_from_world[2].double()
        depths = points.xyz[observed].double() @ z_axis[:3] + z_axis[3]
        return _widened(_extent_of(in_view.depths(index)), _extent_of(depths))

    with ThreadPoolExecutor(4, "ranges") as pool:
        return list(pool.map(range_of, range(len(cameras))))


class _PointsInView:
    """Finds the points in the image of a camera, with one matrix product per camera: there may be many."""

    def __init__(self, cameras: Sequence[Camera], xyz: Tensor) -> None:
        batch, sizes = camera_batch(cameras)
        self._sizes: list[list[float]] = sizes.tolist()
        self._projections = batch.K @ batch.cam_from_world[:, :3]  # [V, 3, 4]
        self._points = torch.cat([xyz.double().T, torch.ones(1, len(xyz), dtype=torch.float64)])  # [4, P]

    def depths(self, index: int) -> Tensor:
        """Depths of the points in a camera's image."""
        width, height = self._sizes[index]
        x, y, depth = self._projections[index] @ self._points  # [P] each; x and y times depth
        inside = (depth > 0) & (x >= 0) & (y >= 0) & (x <= width * depth) & (y <= height * depth)
        visible: Tensor = depth[inside]
        return visible


@dataclass(frozen=True)
class _Extent:
    """The nearest and the farthest of some depths, without outliers."""

    near: float
    far: float
    count: int


def _extent_of(depths: Tensor) -> _Extent | None:
    depths = _usable(depths)
    last = len(depths) - 1
    if last < 0:
        return None
    first = math.floor(_OUTLIERS * last)
    skipped_at_end = last - math.ceil((1 - _OUTLIERS) * last)
    # Only the depths at both ends need be sorted.
    nearest = min(last + 1, math.ceil(max(_OUTLIERS, _MAX_ISOLATED) * last) + 3)
    ordered: list[float] = depths.topk(nearest, largest=False).values.tolist()
    # A wrong point right in front of the camera costs most: it takes nearly all bins.
    while first < _MAX_ISOLATED * last and ordered[first] < _ISOLATED * ordered[min(first + 2, last)]:
        first += 1
    return _Extent(ordered[first], float(depths.topk(skipped_at_end + 1).values[-1]), last + 1)


def _widened(in_view: _Extent | None, observed: _Extent | None) -> DepthRange | None:
    """A range around the points that a view observes, and all others in its image."""
    best = observed or in_view
    if best is None:
        return None
    near, far = best.near, best.far
    if in_view is not None:
        near, far = min(near, in_view.near), max(far, min(in_view.far, _MAX_UNSEEN * far))
    least, most = _FAR_FACTORS
    factor = 1 + (most - 1) * math.sqrt(_FEW_POINTS / best.count)
    return DepthRange(near / _NEAR_FACTOR, far * min(max(factor, least), most))


# ---- from cameras alone ------------------------------------------------------------------------------------


def ranges_from_cameras(cameras: Sequence[Camera]) -> list[DepthRange]:
    """A guess for each view where nothing but cameras is known. Callers must tell the user that it is one.

    Cameras that look at one thing: around the point nearest to all optical axes. Cameras that look side by
    side: a wide range in units of the distance between neighbours.
    """
    batch, _ = camera_batch(cameras)
    centres = batch.centre  # [V, 3]
    axes = batch.cam_from_world[:, 2, :3]  # [V, 3] viewing directions in the world
    # Sum over views of the squared distance to the axis: (I - a a^T), least squares.
    off_axis = torch.eye(3, dtype=torch.float64) - axes[:, :, None] * axes[:, None, :]  # [V, 3, 3]
    normal = off_axis.mean(0)  # [3, 3]
    if float(torch.linalg.eigvalsh(normal)[0]) > 0.01:  # axes differ by some 6 degrees or more
        focus = torch.linalg.solve(normal, (off_axis @ centres[:, :, None]).mean(0)[:, 0])
        depths = ((focus - centres) * axes).sum(-1)  # [V]
        if float((depths > 0).double().mean()) > 0.9:
            typical = float(depths[depths > 0].median())
            return [_around(float(d) if d > 0.2 * typical else typical) for d in depths]
    if len(cameras) < 2:
        return [DepthRange(0.5, 50.0) for _ in cameras]
    spacing = float(nearest(centres, 1)[0].median())
    unit = spacing if 0 < spacing < math.inf else 0.1
    return [DepthRange(3 * unit, 60 * unit) for _ in cameras]


def _around(depth: float) -> DepthRange:
    return DepthRange(0.4 * depth, 2.5 * depth)
