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

_LOW, _HIGH = 0.01, 0.99  # shares of the depths that may lie outside
_MARGIN = 0.2  # of the extent, on both sides
_FLAT_MARGIN = 0.03  # of the depth itself, for flat things seen from the front
_MOST = 0.25  # of the depth itself: the largest margin
_FEW = 20  # fewer depths than this say little: then the margin is the largest


def range_from_depths(depths: Tensor) -> DepthRange | None:
    """A range that holds nearly all of these depths, with a margin; None if none of them is usable."""
    depths = _usable(depths)
    if len(depths) == 0:
        return None
    depths = depths[:: max(1, len(depths) // 1_000_000)].sort().values
    # Outwards, never between two depths: a few far-apart points must not lose their ends.
    low = float(depths[math.floor(_LOW * (len(depths) - 1))])
    high = float(depths[math.ceil(_HIGH * (len(depths) - 1))])
    if len(depths) < _FEW:
        return DepthRange((1 - _MOST) * low, (1 + _MOST) * high)
    # A wide extent often comes from a few far things; they must not push the near end to the camera.
    margin = _MARGIN * (high - low)
    near_margin = min(margin + _FLAT_MARGIN * low, _MOST * low)
    far_margin = min(margin + _FLAT_MARGIN * high, _MOST * high)
    return DepthRange(low - near_margin, high + far_margin)


def _usable(depths: Tensor) -> Tensor:
    return depths[torch.isfinite(depths) & (depths > 0)].double()


# ---- from points of structure from motion ------------------------------------------------------------------
#
# Points lie where photos have texture that many of them share. Trees, wires and what stands in front of the
# rest often have none, and neither have plain walls behind it. So a range is far wider than its points. The
# network's bins are equal in 1/depth, where this costs little: far away nearly nothing.

_NEAR_ROOM = 1.6  # the nearest point is this many times as far away as the near end
# The far end is so many times as far away as the farthest point: with many points, few.
_FAR_ROOM = (1.4, 3.0)
_FEW_POINTS = 100  # in sight of a view; the more there are, the less is beyond them
_OUTSIDE = 0.005  # share of the points at either end that may be wrong
_LONELY = 0.33  # a near point is wrong too if it is less than this times as far as the second next,
_MOST_LONELY = 0.03  # for at most this share of the points
_BEYOND = 2.0  # points of others, which may be hidden, count up to this many times the depth of a view's own
_SURE = 3  # views that make a point certain
_ENOUGH = 500  # such points that are enough without the others
_MAX_POINTS = 20_000  # of a scene that are looked at for each view


def ranges_from_points(cameras: Sequence[Camera], points: SparsePoints) -> list[DepthRange | None]:
    """Depth range of each view from all points in its frustum, whoever sees them."""
    if points.view_index is None or points.track_start is None:
        some = points.xyz[:: max(1, len(points.xyz) // _MAX_POINTS)]
        in_sight = _Sight(cameras, some)
        return [_with_room(_ends(in_sight.depths(index)), None) for index in range(len(cameras))]
    point, view = observations(points)
    sure = torch.bincount(point, minlength=len(points.xyz)) >= _SURE  # [P]
    order = view.argsort(stable=True)
    bounds = torch.searchsorted(view[order], torch.arange(len(cameras) + 1))  # [V + 1]
    shared = points.xyz[sure] if int(sure.sum()) >= _ENOUGH else points.xyz
    shared = shared[:: max(1, len(shared) // _MAX_POINTS)]
    in_sight = _Sight(cameras, shared)

    def range_of(index: int) -> DepthRange | None:
        own = point[order[bounds[index] : bounds[index + 1]]]
        if int(sure[own].sum()) >= _ENOUGH:
            own = own[sure[own]]
        z_axis = cameras[index].cam_from_world[2].double()
        depths = points.xyz[own].double() @ z_axis[:3] + z_axis[3]
        return _with_room(_ends(in_sight.depths(index)), _ends(depths))

    with ThreadPoolExecutor(4, "ranges") as pool:
        return list(pool.map(range_of, range(len(cameras))))


class _Sight:
    """Which points lie in the images of cameras. One product a camera: there may be many."""

    def __init__(self, cameras: Sequence[Camera], xyz: Tensor) -> None:
        batch, sizes = camera_batch(cameras)
        self._sizes: list[list[float]] = sizes.tolist()
        self._projections = batch.K @ batch.cam_from_world[:, :3]  # [V, 3, 4]
        self._points = torch.cat([xyz.double().T, torch.ones(1, len(xyz), dtype=torch.float64)])  # [4, P]

    def depths(self, index: int) -> Tensor:
        """Those of the points in a camera's image."""
        width, height = self._sizes[index]
        x, y, depth = self._projections[index] @ self._points  # [P] each; x and y times depth
        inside = (depth > 0) & (x >= 0) & (y >= 0) & (x <= width * depth) & (y <= height * depth)
        found: Tensor = depth[inside]
        return found


@dataclass(frozen=True)
class _Ends:
    """The nearest and the farthest of some depths that can be believed."""

    near: float
    far: float
    count: int


def _ends(depths: Tensor) -> _Ends | None:
    good = _usable(depths)
    last = len(good) - 1
    if last < 0:
        return None
    first = math.floor(_OUTSIDE * last)
    beyond = last - math.ceil((1 - _OUTSIDE) * last)
    # Of all depths in order, only the ends are looked at: the rest need not be sorted.
    nearest = min(last + 1, math.ceil(max(_OUTSIDE, _MOST_LONELY) * last) + 3)
    ordered: list[float] = good.topk(nearest, largest=False).values.tolist()
    # A wrong point right before the camera costs most: it takes nearly all bins.
    while first < _MOST_LONELY * last and ordered[first] < _LONELY * ordered[min(first + 2, last)]:
        first += 1
    return _Ends(ordered[first], float(good.topk(beyond + 1).values[-1]), last + 1)


def _with_room(sight: _Ends | None, own: _Ends | None) -> DepthRange | None:
    """A range around a view's own points and all others in its sight."""
    known = own or sight
    if known is None:
        return None
    near, far = known.near, known.far
    if sight is not None:
        near, far = min(near, sight.near), max(far, min(sight.far, _BEYOND * far))
    least, most = _FAR_ROOM
    room = 1 + (most - 1) * math.sqrt(_FEW_POINTS / known.count)
    return DepthRange(near / _NEAR_ROOM, far * min(max(room, least), most))


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
