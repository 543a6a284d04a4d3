"""Do other views see the same surface? The geometric check of one depth map against its neighbours.

A pixel of the reference is lifted to its depth, projected into a source view, lifted there to the source's
own depth and projected back. If it comes back close to where it started, and at nearly the same depth, the
two views agree. Pixels go from camera to camera and never through the world, so that scenes far from its
origin (map coordinates, say) lose no precision in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.ops.threads_cpu import in_threads

T = TypeVar("T")
Strip = tuple[slice, DepthMap]  # its rows, and the part of the map there

NEVER = 255  # level of a source that does not agree however loose the thresholds
TRUST = 0.9  # however confident a view is, it is believed no more than this: one view alone never decides


@dataclass(frozen=True)
class Reprojection:
    """What one source view says about every pixel of the reference."""

    distance: Tensor  # [H, W] px between a pixel and its return; inf where the source says nothing
    depth: Tensor  # [H, W] depth of the source's surface point in the reference camera
    source_pixel: Tensor  # [H, W] int64, flat index of the source pixel that was hit; -1 where none
    in_sight: Tensor  # [H, W] bool: the pixel's point lies in the source's image
    beyond: Tensor  # [H, W] share of its depth by which the source's surface lies behind the point; or 0


def reproject(reference: DepthMap, source: DepthMap) -> Reprojection:
    """Send every pixel of the reference to the source's surface and back."""
    maps = _with_validity(source)
    parts = each_strip(lambda part: _reproject_strip(part[1], source.camera, maps), reference)
    return Reprojection(
        distance=torch.cat([p.distance for p in parts]),
        depth=torch.cat([p.depth for p in parts]),
        source_pixel=torch.cat([p.source_pixel for p in parts]),
        in_sight=torch.cat([p.in_sight for p in parts]),
        beyond=torch.cat([p.beyond for p in parts]),
    )


def each_strip(work: Callable[[Strip], T], whole: DepthMap) -> list[T]:
    """What work says of a depth map in pieces of full width: temporary tensors stay small (on a CPU, in its
    cache, and its threads share them out)."""
    return in_threads(work, list(_strips(whole)), whole.depth.device)


def _strips(whole: DepthMap) -> Iterator[Strip]:
    height, width = whole.depth.shape
    step = max(1, (1 << 16 if whole.depth.device.type == "cpu" else 1 << 23) // width)
    for top in range(0, height, step):
        rows = slice(top, min(top + step, height))
        camera = whole.camera.cropped(0, top, width, rows.stop - top)
        yield rows, DepthMap(whole.depth[rows], camera)


def _with_validity(source: DepthMap) -> Tensor:
    """[1, 2, H, W]: depth, 0 where unknown, and 1 where known."""
    return torch.stack([torch.where(source.valid, source.depth, 0), source.valid.to(source.depth.dtype)])[
        None
    ]


def _sample(maps: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Depth at real-valued pixel coordinates [H, W] and the flat index of the nearest pixel.

    Bilinear over the known neighbours; 0 and -1 where the nearest pixel is unknown or outside the map.
    """
    height, width = maps.shape[-2:]
    grid = torch.stack([x * (2 / width) - 1, y * (2 / height) - 1], dim=-1).clamp_(-2, 2)[None]
    total, weight = F.grid_sample(maps, grid, align_corners=False)[0]  # [H, W] each
    column, row = x.floor().long(), y.floor().long()  # pixel j covers [j, j + 1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = torch.where(inside, row * width + column, 0)
    hit = inside & (maps[0, 1].reshape(-1)[index] > 0)
    return torch.where(hit, total / weight.clamp(min=1e-6), 0), torch.where(hit, index, -1)


def _reproject_strip(reference: DepthMap, source_camera: Camera, maps: Tensor) -> Reprojection:
    grid = reference.camera.to(reference.depth.device, reference.depth.dtype).pixel_grid()
    u, v = grid[:1, :, 0], grid[:, :1, 1]  # [1, W], [H, 1]
    x, y, z = _carry(u, v, reference.depth, *transfer(reference.camera, source_camera))  # [H, W] each
    limit_x, limit_y = source_camera.width, source_camera.height
    in_sight = (z > 0) & (x >= 0) & (x < limit_x) & (y >= 0) & (y < limit_y) & reference.valid
    x, y = torch.where(in_sight, x, -1.0), torch.where(in_sight, y, -1.0)  # outside the map
    depth, index = _sample(maps, x, y)
    back_x, back_y, back_depth = _carry(x, y, depth, *transfer(source_camera, reference.camera))
    distance = torch.hypot(back_x - u, back_y - v)
    seen = (index >= 0) & (back_depth > 0) & torch.isfinite(distance)
    return Reprojection(
        distance=torch.where(seen, distance, torch.inf),
        depth=torch.where(seen, back_depth, 0),
        source_pixel=torch.where(seen, index, -1),
        in_sight=in_sight,
        beyond=torch.where(seen, depth / z - 1, 0),
    )


Numbers = list[list[float]]


def transfer(start: Camera, end: Camera) -> tuple[Numbers, list[float]]:
    """(A, b) such that depth * A (u, v, 1) + b is the homogeneous pixel of the same point in another camera.

    Its third entry is the depth there. Multiplied in float64: the large parts of poses in map coordinates
    cancel here, before anything is rounded. Plain numbers, because small tensors are slow to work with, and
    let go of Python's lock at every step.
    """
    one, other = start.cam_from_world.tolist(), end.cam_from_world.tolist()
    from_world, shift = [row[:3] for row in other[:3]], [row[3] for row in other[:3]]
    to_world = list(zip(*(row[:3] for row in one[:3]), strict=True))
    centre = [-part for part in _times(to_world, [row[3] for row in one[:3]])]  # of the start, in the world
    moved = [a + b for a, b in zip(_times(from_world, centre), shift, strict=True)]
    K = end.K.tolist()
    return _product(K, _product(_product(from_world, to_world), _inverse(start.K.tolist()))), _times(K, moved)


def _times(matrix: Sequence[Sequence[float]], v: Sequence[float]) -> list[float]:
    return [row[0] * v[0] + row[1] * v[1] + row[2] * v[2] for row in matrix]


def _product(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> Numbers:
    columns = [_times(left, column) for column in zip(*right, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _inverse(matrix: Sequence[Sequence[float]]) -> Numbers:
    """Of [3, 3], by cross products of its rows."""
    a, b, c = matrix
    columns = [
        [p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]]
        for p, q in ((b, c), (c, a), (a, b))
    ]
    determinant = sum(x * y for x, y in zip(a, columns[0], strict=True))
    return [[entry / determinant for entry in row] for row in zip(*columns, strict=True)]


def _carry(u: Tensor, v: Tensor, depth: Tensor, A: Numbers, b: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Pixel (x, y) and depth in the other camera."""
    x, y, z = (depth * (u * A[i][0] + (v * A[i][1] + A[i][2])) + b[i] for i in range(3))
    return x / z, y / z, z


@dataclass(frozen=True)
class Agreement:
    """The verdict of all sources on one reference depth map."""

    depth: Tensor  # [H, W] mean depth of the reference and the sources that agree
    num_views: Tensor  # [H, W] int64, the reference itself included; 1 = nobody agrees
    consistent: Tensor  # [H, W] bool: enough views agree
    source_pixels: Tensor  # [S, H, W] int32 flat index of the agreeing pixel in each source, -1 = none
    min_sources: Tensor  # int64: how many sources had to agree


def agree(
    reference: DepthMap,
    sources: Sequence[DepthMap],
    *,
    max_distance: float,
    max_relative_depth: float,
    min_sources: int,
    dynamic: bool,
    strict: bool = False,
    certainty: float = 0.0,
) -> Agreement:
    """Compare a depth map with its sources.

    Fixed thresholds: at least `min_sources` sources within the two thresholds. Dynamic: for some n from
    `min_sources` up, at least n sources within n times the thresholds: few views must agree closely, many may
    agree loosely (Yan et al., ECCV 2020).

    A pixel that few sources have in their image cannot be confirmed by many. Unless `strict`, half of the
    sources that see the median pixel of the reference are enough, however large `min_sources` is.

    With a `certainty`, the point must also be right with at least this probability by the confidences of all
    views, as if they erred independently. Its probability of being wrong is the product of those of the
    reference and of every source that agrees, whose confidence counts less the less closely it does; it is
    divided by those of the sources that look through the point, to a surface behind. No view is believed more
    than `TRUST`. Maps without confidence count as fully confident.
    """
    shape, device = (len(sources), *reference.depth.shape), reference.depth.device
    level = torch.empty(shape, dtype=torch.uint8, device=device)
    depth = torch.empty(shape, device=device)
    pixel = torch.empty(shape, dtype=torch.int32, device=device)
    in_sight = torch.zeros(shape[1:], dtype=torch.int64, device=device)
    doubt = torch.log1p(-TRUST * _confidence(reference))

    def compare(number: int, source: DepthMap) -> None:
        maps = _with_validity(source)
        confidence = _confidence(source).flatten()

        def compare_strip(part: Strip) -> None:
            rows, strip = part
            seen = _reproject_strip(strip, source.camera, maps)
            relative = (seen.depth - strip.depth).abs() / strip.depth.clamp(min=1e-12)
            ratio = torch.maximum(seen.distance / max_distance, relative / max_relative_depth)
            # Level n: the source agrees as soon as the thresholds are taken n times.
            levels = ratio.ceil().clamp(1, NEVER) if dynamic else torch.where(ratio <= 1, 1, NEVER)
            level[number, rows] = levels.to(torch.uint8)
            depth[number, rows] = seen.depth
            pixel[number, rows] = seen.source_pixel.to(torch.int32)
            in_sight[rows] += seen.in_sight
            through = seen.beyond > max_relative_depth
            doubt[rows] += _doubt_of(confidence[seen.source_pixel.clamp(min=0)], ratio, through)

        each_strip(compare_strip, reference)

    for number, source in enumerate(sources):
        compare(number, source)
    needed = torch.full((), min_sources, device=device)
    if not strict:
        seen_by = [((in_sight == n) & reference.valid).sum() for n in range(len(sources) + 1)]
        needed = enough_sources(min_sources, torch.stack(seen_by))
    consistent, limit = _decide(level, needed, dynamic)
    consistent &= doubt <= most_doubt(certainty)
    agrees = level <= limit  # [S, H, W]
    count = agrees.sum(0)  # [H, W]
    total = depth.mul_(agrees).sum(0).add_(reference.depth)
    return Agreement(
        depth=total / (count + 1),
        num_views=count + 1,
        consistent=consistent & reference.valid,
        source_pixels=pixel.masked_fill_(~agrees, -1),
        min_sources=needed,
    )


def most_doubt(certainty: float) -> float:
    """Logarithm of the largest probability of being wrong that a point may have; certainty 0 = any."""
    return math.log1p(-certainty) if certainty > 0 else math.inf


def _doubt_of(confidence: Tensor, ratio: Tensor, through: Tensor) -> Tensor:
    """What a source adds to the logarithm of the probability that a point is wrong, [H, W].

    confidence: of the source's pixel; ratio: of its differences to the thresholds, 1 and less = it agrees;
    through: it sees a surface behind the point.
    """
    against = through & (ratio > 1)
    share = torch.where(against, 1.0, (1 - ratio).clamp(min=0))
    doubt = torch.log1p(-TRUST * confidence * share)
    return torch.where(against, -doubt, doubt)


def _confidence(depth_map: DepthMap) -> Tensor:
    return torch.ones_like(depth_map.depth) if depth_map.confidence is None else depth_map.confidence


def enough_sources(min_sources: int, seen_by: Tensor) -> Tensor:
    """How many sources must agree (int64): half of those that see the median pixel, `min_sources` at most.

    `seen_by` [S + 1 or more]: pixels of the reference that 0, 1, ... sources have in their image.
    """
    below = seen_by.cumsum(0)  # int64
    median = (below < (below[-1] + 1) // 2).sum()
    return ((median + 1) // 2).clamp(1, min_sources)


def _decide(level: Tensor, needed: Tensor, dynamic: bool) -> tuple[Tensor, Tensor]:
    """Levels [S, H, W] -> where enough sources agree [H, W], and the largest level that counts there."""
    limit = torch.ones(level.shape[1:], dtype=torch.uint8, device=level.device)
    if not dynamic:
        return (level <= 1).sum(0) >= needed, limit
    consistent = torch.zeros(level.shape[1:], dtype=torch.bool, device=level.device)
    for n in range(1, len(level) + 1):
        passes = ((level <= n).sum(0) >= n) & (needed <= n) & ~consistent
        limit = torch.where(passes, n, limit).to(torch.uint8)
        consistent |= passes
    return consistent, limit
