"""Which views see the same surfaces: ranked source views, their coverage, orders to visit views in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gbinet.camera import Camera, pixel_centres
from gbinet.errors import InputError
from gbinet.scene import DepthRange, SourceView, SparsePoints, View
from gbinet.scenes.nearest import nearest


def visiting_order(neighbours: Sequence[Sequence[int]]) -> list[int]:
    """An order of all views in which neighbours follow each other, so that small caches are enough.

    Depth-first search: on to the best neighbour not yet visited, else back, else to the first view left.
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


def neighbours_first_order(neighbours: Sequence[Sequence[int]]) -> list[int]:
    """`visiting_order`, but every view is followed at once by its neighbours that did not come before.

    So a view can be compared with its neighbours soon after it, and all that it needs is used soon.
    """
    with_repeats = (other for view in visiting_order(neighbours) for other in (view, *neighbours[view]))
    return list(dict.fromkeys(with_repeats))


# ---- source views ------------------------------------------------------------------------------------------
#
# MVSNet's score of a pair of views: every point that both see adds exp(-(angle - 5)^2 / (2 sigma^2)), where
# the angle (degrees) is the one under which the point sees the two cameras: about 5 degrees is best; smaller
# ones lose value quickly (sigma 1), larger ones slowly (sigma 10). Times the same of the scale: photos that
# show a thing twice as large or half as large are worth 0.6 of one at the same scale.

BEST_ANGLE = 5.0
SIGMA_BELOW = 1.0
SIGMA_ABOVE = 10.0

_PAIRS_AT_ONCE = 1 << 21  # pairs of rays held in memory together
_MAX_TABLE = 1 << 22  # pairs of views up to which sums are held in a table of all pairs
_VIEWS_AT_ONCE = 8  # that are ranked by geometry together: intermediate tensors stay in the CPU's cache
_MAX_CANDIDATES = 256  # neighbours considered per view where there are no tracks


def angle_score(cosine: Tensor) -> Tensor:
    """Value of a point for a pair of views, from the cosine of its angle."""
    angle = torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))
    sigma = torch.where(angle <= BEST_ANGLE, SIGMA_BELOW, SIGMA_ABOVE)
    return torch.exp(-((angle - BEST_ANGLE) ** 2) / (2 * sigma**2))


def scale_score(size: Tensor, other: Tensor) -> Tensor:
    """Value of a point for a pair of views, from how large each of them shows it."""
    return torch.exp(-((size / other).log2() ** 2) / 2)


def _magnification(cameras: Sequence[Camera]) -> Tensor:
    """[V] size in the photo of something of unit size, one unit away, as a share of the photo's longer side.

    Not in pixels: photos of all sizes are resized to one before they are compared.
    """
    shares = [float(camera.K[0, 0]) / max(camera.width, camera.height) for camera in cameras]
    return torch.tensor(shares, dtype=torch.float64)


def rank_by_tracks(
    cameras: Sequence[Camera], points: SparsePoints, max_sources: int = 10
) -> list[tuple[SourceView, ...]]:
    """Best source views of each view, by MVSNet's score (above) over the points that both observe."""
    if points.view_index is None or points.track_start is None:
        raise InputError("ranking by tracks needs points that know which views observe them")
    count = len(cameras)
    centres = torch.stack([camera.centre for camera in cameras]).double()  # [V, 3]
    magnification = _magnification(cameras)
    point, view = observations(points)
    lengths = torch.bincount(point, minlength=len(points.xyz))  # [P]
    starts = lengths.cumsum(0) - lengths  # [P]
    pairs = _Sums(count * count)
    # Tracks of one length form a dense block: no loop over points or pairs.
    for length in torch.bincount(lengths).nonzero()[:, 0].tolist():
        if length < 2:
            continue
        of_length = (lengths == length).nonzero()[:, 0]
        for block in of_length.split(max(1, _PAIRS_AT_ONCE // length**2)):
            seen_by = view[starts[block][:, None] + torch.arange(length)]  # [N, L]
            rays = centres[seen_by] - points.xyz[block].double()[:, None]  # [N, L, 3]
            distance = rays.norm(dim=-1).clamp_min(1e-300)  # [N, L]
            rays, sizes = rays / distance[..., None], magnification[seen_by] / distance
            values = angle_score(rays @ rays.mT) * scale_score(sizes[:, :, None], sizes[:, None])  # [N, L, L]
            keys = seen_by[:, :, None] * count + seen_by[:, None, :]  # [N, L, L]
            pairs.add(keys.reshape(-1), values.reshape(-1))
    return _best_of_rows(*pairs.result(), count, max_sources)


class _Sums:
    """Sums of values by key: in a table of all keys if it is small, else only of keys that occur."""

    def __init__(self, keys: int) -> None:
        self._table = torch.zeros(keys, dtype=torch.float64) if keys <= _MAX_TABLE else None
        self._keys, self._values = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)

    def add(self, keys: Tensor, values: Tensor) -> None:
        if self._table is not None:
            self._table += torch.bincount(keys, values, minlength=len(self._table))
            return
        self._keys, inverse = torch.unique(torch.cat([self._keys, keys]), return_inverse=True)
        self._values = torch.bincount(inverse, torch.cat([self._values, values]), minlength=len(self._keys))

    def result(self) -> tuple[Tensor, Tensor]:
        """Keys with a value above 0, ascending, and their sums."""
        if self._table is not None:
            self._keys = self._table.nonzero()[:, 0]
            self._values = self._table[self._keys]
        return self._keys, self._values


def _best_of_rows(keys: Tensor, values: Tensor, count: int, limit: int) -> list[tuple[SourceView, ...]]:
    """The `limit` largest values of each row of a table, except its diagonal; key = row * count + column."""
    rows, columns = keys // count, keys % count
    order = values.argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]
    order = order[(rows[order] != columns[order]) & (values[order] > 0)]
    rows, columns, values = rows[order], columns[order], values[order]
    starts = torch.searchsorted(rows, torch.arange(count + 1)).tolist()
    sources = [SourceView(c, v) for c, v in zip(columns.tolist(), values.tolist(), strict=True)]
    return [tuple(sources[a:b][:limit]) for a, b in pairwise(starts)]


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
    """Best source views of each view where no tracks are known.

    The same score over made-up points: nine pixels of the view at three depths inside its range, counted
    where the other camera has them in its image.
    """
    count = len(cameras)
    if count < 2:
        return [() for _ in cameras]
    batch, sizes = camera_batch(cameras)
    centres, magnification = batch.centre, _magnification(cameras)  # [V, 3], [V]
    # Far-away cameras see other things; looking at the nearest ones keeps this linear in the number of views.
    width = min(_MAX_CANDIDATES, count - 1)
    candidates = nearest(centres, width)[1]  # [V, C]
    projections = batch.K @ batch.cam_from_world[:, :3]  # [V, 3, 4]
    fractions = torch.tensor([[x, y] for y in (1 / 6, 0.5, 5 / 6) for x in (1 / 6, 0.5, 5 / 6)]).double()
    limits = torch.tensor([[r.near, r.far] for r in ranges], dtype=torch.float64)  # [V, 2]
    shares = torch.tensor([1 / 6, 0.5, 5 / 6], dtype=torch.float64).repeat_interleave(9)  # [27]
    scores = torch.zeros(count, width, dtype=torch.float64)
    for start in range(0, count, _VIEWS_AT_ONCE):
        block = torch.arange(start, min(start + _VIEWS_AT_ONCE, count))
        near, far = limits[block].unsqueeze(-1).unbind(1)  # [B, 1] each
        pixels = (fractions * sizes[block][:, None]).repeat(1, 3, 1)  # [B, 27, 2]
        points = batch[block].unproject(pixels, near * (far / near) ** shares)  # [B, 27, 3]
        others = candidates[block]  # [B, C]
        # One product for all cameras, and planes instead of vectors: three times as fast as Camera.project.
        homogeneous = torch.cat([points, torch.ones_like(points[..., :1])], -1).mT  # [B, 4, 27]
        projected = projections[others].reshape(len(block), -1, 4) @ homogeneous  # [B, C * 3, 27]
        x, y, depth = projected.reshape(len(block), width, 3, 27).unbind(2)  # [B, C, 27] each
        right, bottom = (limit * depth for limit in sizes[others][..., None].unbind(2))
        inside = (depth > 0) & (x >= 0) & (y >= 0) & (x <= right) & (y <= bottom)
        to_ref = (centres[block][:, None] - points).mT[:, None]  # [B, 1, 3, 27]
        to_other = centres[others][..., None] - points.mT[:, None]  # [B, C, 3, 27]
        ref_distance = to_ref.norm(dim=2)  # [B, 1, 27]
        other_distance = to_other.square().sum(2).sqrt_().clamp_min_(1e-300)  # [B, C, 27]
        cosine = to_other.mul_(to_ref).sum(2) / (ref_distance * other_distance)
        ref_size = magnification[block][:, None, None] / ref_distance
        other_size = magnification[others][..., None] / other_distance
        values = angle_score(cosine) * scale_score(ref_size, other_size)
        scores[block] = (values * inside).sum(-1)
    best = scores.topk(min(max_sources, width), dim=1)
    return _as_sources(candidates.gather(1, best.indices), best.values)


def coverage(views: Sequence[View], num_sources: int = 4, num_seen: int = 2) -> list[float]:
    """Share of each view that at least `num_seen` of its best sources see too, at the middle of its range.

    Surfaces that few sources see get no reliable depth.
    """
    shares = []
    for view in views:
        sources = [views[source.index] for source in view.sources[:num_sources]]
        if view.depth_range is None or len(sources) < num_seen:
            shares.append(0.0)
            continue
        camera = view.camera.to(dtype=torch.float64)
        size = torch.tensor([camera.width, camera.height], dtype=torch.float64)
        shares_of_image = pixel_centres(12, 16, dtype=torch.float64) / torch.tensor([16.0, 12.0])
        pixels = (shares_of_image * size).reshape(-1, 2)
        middle = math.sqrt(view.depth_range.near * view.depth_range.far)
        points = camera.unproject(pixels, torch.full((len(pixels),), middle, dtype=torch.float64))
        batch, sizes = camera_batch([source.camera for source in sources])
        seen, depth = batch.project(points.expand(len(sources), -1, -1))  # [S, N, 2], [S, N]
        inside = (depth > 0) & (seen >= 0).all(-1) & (seen <= sizes[:, None]).all(-1)
        shares.append(float((inside.sum(0) >= num_seen).double().mean()))
    return shares


def _as_sources(indices: Tensor, scores: Tensor) -> list[tuple[SourceView, ...]]:
    """[V, S] indices and scores, best first -> source views; those with score 0 are left out."""
    return [
        tuple(SourceView(i, s) for i, s in zip(row, values, strict=True) if s > 0)
        for row, values in zip(indices.tolist(), scores.tolist(), strict=True)
    ]


def camera_batch(cameras: Sequence[Camera]) -> tuple[Camera, Tensor]:
    """All cameras as one batch whatever their image sizes, which are [V, 2]; the batch's own size is void."""
    K = torch.stack([camera.K for camera in cameras]).double()
    cam_from_world = torch.stack([camera.cam_from_world for camera in cameras]).double()
    sizes = torch.tensor([[camera.width, camera.height] for camera in cameras], dtype=torch.float64)
    return Camera(K, cam_from_world, 1, 1), sizes
