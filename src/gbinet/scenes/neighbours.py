"""Which views see the same things: source views ranked, what they cover, an order to visit them in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gbinet.camera import Camera, pixel_centres
from gbinet.errors import InputError
from gbinet.scene import DepthRange, SourceView, SparsePoints, View
from gbinet.scenes.nearest import nearest


def visiting_order(neighbours: Sequence[Sequence[int]]) -> list[int]:
    """An order of all views in which neighbours follow each other, so that small caches are enough.

    A walk: on to the best neighbour not yet visited, else back along the path, else to the first view left.
    """
    order: list[int] = []
    visited = [False] * len(neighbours)
    for start in range(len(neighbours)):
        path = [] if visited[start] else [start]
        while path:
            view = path[-1]
            if not visited[view]:
                visited[view] = True
                order.append(view)
            following = next((n for n in neighbours[view] if not visited[n]), None)
            if following is None:
                path.pop()
            else:
                path.append(following)
    return order


def together_order(neighbours: Sequence[Sequence[int]]) -> list[int]:
    """The same walk, but every view is followed at once by those of its neighbours that are still to come.

    Who compares a view with its neighbours can begin after a few, and what a view needs is needed soon.
    """
    walk = (one for view in visiting_order(neighbours) for one in (view, *neighbours[view]))
    return list(dict.fromkeys(walk))


# ---- source views ------------------------------------------------------------------------------------------
#
# MVSNet's score of a pair of views: every point that both see adds exp(-(angle - 5)^2 / (2 sigma^2)), where
# the angle (degrees) is the one under which the point sees the two cameras: about 5 degrees is best; smaller
# ones lose value quickly (sigma 1), larger ones slowly (sigma 10). Times the same of the scale: photos that
# show a thing twice as large or half as large are worth 0.6 of one at the same scale.
#
# Sources are chosen one after the other by this score, but what those before have seen well counts less for
# the next: else the first few might all look from one side, or all at the same part of the view.

BEST_ANGLE = 5.0
SIGMA_BELOW = 1.0
SIGMA_ABOVE = 10.0
SEEN = 0.1  # what a point still counts for the next source once one has seen it as well as can be

_POINTS = 1024  # of a view that its sources are chosen by, at most: more tell nothing new
_VIEWS_AT_ONCE = 8  # that are ranked by geometry together: what is computed stays in the cache
_CANDIDATES = 256  # neighbours looked at per view where there are no tracks


def angle_score(cosine: Tensor) -> Tensor:
    """Value of a point for a pair of views, from the cosine of its angle."""
    angle = torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))
    sigma = torch.where(angle <= BEST_ANGLE, SIGMA_BELOW, SIGMA_ABOVE)
    return torch.exp(-((angle - BEST_ANGLE) ** 2) / (2 * sigma**2))


def scale_score(size: Tensor, other: Tensor) -> Tensor:
    """Value of a point for a pair of views, from how large each of them shows it."""
    return torch.exp(-((size / other).log2() ** 2) / 2)


def _magnification(cameras: Sequence[Camera]) -> Tensor:
    """[V] how large a thing one unit away is shown, as a share of the photo's longer side.

    Not pixels: photos of all sizes are resized to one before they are compared.
    """
    shares = [float(camera.K[0, 0]) / max(camera.width, camera.height) for camera in cameras]
    return torch.tensor(shares, dtype=torch.float64)


def rank_by_tracks(
    cameras: Sequence[Camera], points: SparsePoints, max_sources: int = 10
) -> list[tuple[SourceView, ...]]:
    """Source views of each view, best first, by the score above over the points that both observe."""
    if points.view_index is None or points.track_start is None:
        raise InputError("ranking by tracks needs points that know which views observe them")
    count = len(cameras)
    centres = torch.stack([camera.centre for camera in cameras]).double()  # [V, 3]
    magnification = _magnification(cameras)  # [V]
    point, view = observations(points)  # [T] each
    lengths = torch.bincount(point, minlength=len(points.xyz))  # [P]
    starts = lengths.cumsum(0) - lengths  # [P]
    own = torch.split(view.argsort(stable=True), view.bincount(minlength=count).tolist())  # of each view
    ranked = []
    for index in range(count):
        seen = point[own[index][:: max(1, -(-len(own[index]) // _POINTS))]]  # [N] points
        place = torch.repeat_interleave(torch.arange(len(seen)), lengths[seen])  # [E] their observations
        first = lengths[seen].cumsum(0) - lengths[seen]  # [N]
        other = view[starts[seen][place] + torch.arange(len(place)) - first[place]]  # [E]
        place, other = place[other != index], other[other != index]
        xyz = points.xyz[seen].double()  # [N, 3]
        to_own, to_other = centres[index] - xyz, centres[other] - xyz[place]  # [N, 3], [E, 3]
        near_own, near_other = (ray.norm(dim=-1).clamp_min(1e-300) for ray in (to_own, to_other))
        cosine = (to_own[place] * to_other).sum(-1) / (near_own[place] * near_other)
        sizes = magnification[index] / near_own[place], magnification[other] / near_other
        names, row = torch.unique(other, return_inverse=True)  # [C], [E]
        values = centres.new_zeros(1, len(names), len(seen))  # [1, C, N]
        values[0, row, place] = angle_score(cosine) * scale_score(*sizes)
        best, scores = _one_after_the_other(values, min(max_sources, len(names)))
        ranked += _as_sources(names[best], scores)
    return ranked


def observations(points: SparsePoints) -> tuple[Tensor, Tensor]:
    """(point, view) of every observation, ordered by point, a view at most once per point."""
    assert points.view_index is not None and points.track_start is not None
    lengths = points.track_start.diff()  # [P]
    point = torch.repeat_interleave(torch.arange(len(lengths)), lengths)  # [T]
    width = int(points.view_index.max()) + 1 if len(points.view_index) else 1
    unique = torch.unique(point * width + points.view_index)  # sorted
    return unique // width, unique % width


def rank_by_geometry(
    cameras: Sequence[Camera], ranges: Sequence[DepthRange], max_sources: int = 10
) -> list[tuple[SourceView, ...]]:
    """Source views of each view, best first, where no tracks are known.

    The same score over made-up points: nine pixels of the view at three depths inside its range, counted
    where the other camera has them in its image.
    """
    count = len(cameras)
    if count < 2:
        return [() for _ in cameras]
    batch, sizes = camera_batch(cameras)
    centres, magnification = batch.centre, _magnification(cameras)  # [V, 3], [V]
    # Far-away cameras see other things; looking at the nearest ones keeps this linear in the number of views.
    width = min(_CANDIDATES, count - 1)
    candidates = nearest(centres, width)[1]  # [V, C]
    projections = batch.K @ batch.cam_from_world[:, :3]  # [V, 3, 4]
    fractions = torch.tensor([[x, y] for y in (1 / 6, 0.5, 5 / 6) for x in (1 / 6, 0.5, 5 / 6)]).double()
    limits = torch.tensor([[r.near, r.far] for r in ranges], dtype=torch.float64)  # [V, 2]
    shares = torch.tensor([1 / 6, 0.5, 5 / 6], dtype=torch.float64).repeat_interleave(9)  # [27]
    ranked: list[tuple[SourceView, ...]] = []
    for start in range(0, count, _VIEWS_AT_ONCE):
        block = torch.arange(start, min(start + _VIEWS_AT_ONCE, count))
        near, far = limits[block].unsqueeze(-1).unbind(1)  # [B, 1] each
        pixels = (fractions * sizes[block][:, None]).repeat(1, 3, 1)  # [B, 27, 2]
        points = batch[block].unproject(pixels, near * (far / near) ** shares)  # [B, 27, 3]
        others = candidates[block]  # [B, C]
        # One product for all cameras, and planes instead of vectors: three times as fast as Camera.project.
        whole = torch.cat([points, torch.ones_like(points[..., :1])], -1).mT  # [B, 4, 27]
        seen = projections[others].reshape(len(block), -1, 4) @ whole  # [B, C * 3, 27]
        x, y, depth = seen.reshape(len(block), width, 3, 27).unbind(2)  # [B, C, 27] each
        right, bottom = (limit * depth for limit in sizes[others][..., None].unbind(2))
        inside = (depth > 0) & (x >= 0) & (y >= 0) & (x <= right) & (y <= bottom)
        to_ref = (centres[block][:, None] - points).mT[:, None]  # [B, 1, 3, 27]
        to_other = centres[others][..., None] - points.mT[:, None]  # [B, C, 3, 27]
        near_ref = to_ref.norm(dim=2)  # [B, 1, 27]
        near_other = to_other.square().sum(2).sqrt_().clamp_min_(1e-300)  # [B, C, 27]
        cosine = to_other.mul_(to_ref).sum(2) / (near_ref * near_other)
        own = magnification[block][:, None, None] / near_ref
        values = angle_score(cosine) * scale_score(own, magnification[others][..., None] / near_other)
        best, scores = _one_after_the_other(values * inside, min(max_sources, width))
        ranked += _as_sources(others.gather(1, best), scores)
    return ranked


def _one_after_the_other(values: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Of what C other views are worth at P points of each view [B, C, P], which is written over: the best
    beside those before it, and its score alone. [B, most] each; where nothing is left, the score is 0."""
    scores = values.sum(-1)  # [B, C]
    left = values.new_ones(len(values), values.shape[2])  # [B, P] what a point counts for the next
    rows = torch.arange(len(values))
    columns, found = torch.zeros(len(values), most, dtype=torch.int64), values.new_zeros(len(values), most)
    for place in range(most):
        gain, best = (values @ left[..., None]).squeeze(-1).max(1)  # [B]
        columns[:, place], found[:, place] = best, scores[rows, best] * (gain > 0)
        left *= SEEN ** values[rows, best]
        values[rows, best] = 0
    return columns, found


def coverage(views: Sequence[View], num_sources: int = 4, num_seen: int = 2) -> list[float]:
    """Share of each view that at least `num_seen` of its best sources see too, at the middle of its range.

    What few sources see gets no reliable depth: a low share is a warning.
    """
    shares = []
    for view in views:
        sources = [views[source.index] for source in view.sources[:num_sources]]
        if view.depth_range is None or len(sources) < num_seen:
            shares.append(0.0)
            continue
        camera = view.camera.to(dtype=torch.float64)
        size = torch.tensor([camera.width, camera.height], dtype=torch.float64)
        pixels = (pixel_centres(12, 16, dtype=torch.float64) / torch.tensor([16.0, 12.0]) * size).reshape(
            -1, 2
        )
        middle = math.sqrt(view.depth_range.near * view.depth_range.far)
        points = camera.unproject(pixels, torch.full((len(pixels),), middle, dtype=torch.float64))
        batch, sizes = camera_batch([source.camera for source in sources])
        seen, depth = batch.project(points.expand(len(sources), -1, -1))  # [S, N, 2], [S, N]
        inside = (depth > 0) & (seen >= 0).all(-1) & (seen <= sizes[:, None]).all(-1)
        shares.append(float((inside.sum(0) >= num_seen).double().mean()))
    return shares


def _as_sources(indices: Tensor, scores: Tensor) -> list[tuple[SourceView, ...]]:
    """[V, S] indices and scores, best first -> source views; pairs without any value are left out."""
    return [
        tuple(SourceView(i, s) for i, s in zip(row, values, strict=True) if s > 0)
        for row, values in zip(indices.tolist(), scores.tolist(), strict=True)
    ]


def camera_batch(cameras: Sequence[Camera]) -> tuple[Camera, Tensor]:
    """All cameras as one batch whatever their sizes, and the sizes [V, 2]. The batch's size is void."""
    K = torch.stack([camera.K for camera in cameras]).double()
    cam_from_world = torch.stack([camera.cam_from_world for camera in cameras]).double()
    sizes = torch.tensor([[camera.width, camera.height] for camera in cameras], dtype=torch.float64)
    return Camera(K, cam_from_world, 1, 1), sizes
