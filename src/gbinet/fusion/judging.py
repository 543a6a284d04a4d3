"""What one view adds to the cloud: its verdict, its used pixels, its points. A plain way and a fast one.

Nothing here waits for the device in the fast way: numbers and points leave it when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gbinet.camera import Camera, inverse_3x3
from gbinet.depthmap import DepthMap
from gbinet.fusion.consistency import agree, enough_sources, transfer
from gbinet.fusion.duplicates import UsedPixels
from gbinet.fusion.loading import Loaded
from gbinet.fusion.points import colours, points_of
from gbinet.ops.transfer import to_device
from gbinet.pointcloud import PointCloud

if TYPE_CHECKING:
    from gbinet.fusion.fuse import FusionConfig, Rule


class Departure:
    """Tensors on their way from the device to the host. Pinned memory and an event, where it is CUDA."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = [t.to("cpu", non_blocking=t.is_cuda) for t in tensors]  # CUDA: to pinned memory
        streams = {torch.cuda.current_stream(t.device) for t in tensors if t.is_cuda}
        self._events = [stream.record_event() for stream in streams]

    def arrived(self) -> list[Tensor]:
        """The tensors on the CPU, as soon as they are there."""
        for event in self._events:
            event.synchronize()
        return self._tensors


@dataclass(frozen=True)
class Judged:
    """One view's share, still on the device."""

    counts: Departure  # int64 [4]: new points, pixels with a depth, of these confident, sources needed
    cloud: PointCloud  # its first rows are the new points; how many, `counts` says
    confirmed: DepthMap  # mean depth of the views that agree; 0 where a filter said no
    fresh: Tensor  # [H, W] bool: pixels that became points
    source_pixels: Tensor | None = None  # [S, H, W] int32, see Agreement; where nothing was marked as used


def judge_plainly(
    loaded: Loaded,
    sources: Sequence[tuple[int, DepthMap]],
    used: UsedPixels | None,  # None: as if no view had come before; nothing is marked
    config: FusionConfig,
    rule: Rule,
    index: int,
    position_type: torch.dtype,
) -> Judged:
    """The reference: one operation after the other, one source after the other."""
    reference = loaded.depth_map
    verdict = agree(
        reference,
        [depth_map for _, depth_map in sources],
        max_distance=config.max_reprojection,
        max_relative_depth=config.max_relative_depth,
        min_sources=rule.min_views,
        dynamic=config.dynamic,
        strict=config.strict_views,
        certainty=rule.certainty,
    )
    fresh = verdict.consistent
    if used is not None and config.duplicates == "used-pixel":
        fresh = fresh & ~used.take(index, fresh)
        for number, (i, source) in enumerate(sources):
            hit = verdict.source_pixels[number][fresh]
            used.mark(i, source.depth, hit[hit >= 0].long())
    averaged = DepthMap(verdict.depth, reference.camera, reference.confidence)
    cloud = points_of(loaded.photo, averaged, fresh, verdict.num_views, position_type)
    confirmed = DepthMap(torch.where(verdict.consistent, verdict.depth, 0), reference.camera)
    counts = _counts(fresh.sum(), loaded, verdict.min_sources)
    return Judged(counts, cloud, confirmed, fresh, verdict.source_pixels if used is None else None)


def judge_fast(
    loaded: Loaded,
    sources: Sequence[tuple[int, DepthMap]],
    used: UsedPixels | None,  # None: as if no view had come before; nothing is marked
    config: FusionConfig,
    rule: Rule,
    index: int,
    position_type: torch.dtype,
) -> Judged:
    """The same in three kernels."""
    from gbinet.fusion import consistency_triton as kernels

    reference = loaded.depth_map
    depth, device = reference.depth.contiguous(), reference.depth.device
    marked = used if config.duplicates == "used-pixel" else None
    taken = torch.zeros_like(depth, dtype=torch.bool) if marked is None else marked.take(index, depth)
    masks = [None if marked is None else marked.of(i, source.depth) for i, source in sources]
    hits = depth.new_empty(len(sources), *depth.shape, dtype=torch.int32) if used is None else None
    maps = [source.depth.contiguous() for _, source in sources]
    sure = [None if s.confidence is None else s.confidence.contiguous() for _, s in sources]
    unused = kernels.room(len(sources)) - len(sources)  # rows
    rows = [_numbers(reference.camera, source.camera) for _, source in sources]
    numbers = to_device(torch.tensor(rows + [[0.0] * kernels.NUMBERS] * unused), device)
    places = [[0 if t is None else t.data_ptr() for t in row] for row in zip(maps, sure, masks, strict=True)]
    addresses = to_device(torch.tensor(places + [[0, 0, 0]] * unused, dtype=torch.int64), device)
    needed = torch.full((), rule.min_views, device=device)
    if not config.strict_views and rule.min_views > 1:
        needed = enough_sources(rule.min_views, kernels.in_sight(depth, numbers, len(sources)))
    confidence = torch.ones_like(depth) if reference.confidence is None else reference.confidence.contiguous()
    mean, confirmed, views, fresh = kernels.agree(
        depth,
        confidence,
        taken,
        numbers,
        addresses,
        len(sources),
        needed,
        config.max_reprojection,
        config.max_relative_depth,
        config.dynamic,
        rule.certainty,
        hits,
    )
    if marked is not None:
        marked.pack()
    photo, camera = colours(loaded.photo, depth), to_device(_pinhole(reference.camera), device)
    count, columns = kernels.points(mean, fresh, photo.contiguous(), confidence, views, camera, position_type)
    cloud = PointCloud(*columns)
    kept = DepthMap(confirmed, reference.camera)
    return Judged(_counts(count, loaded, needed), cloud, kept, fresh.view(torch.bool), hits)


@dataclass(frozen=True)
class Arrived:
    """One view's share on the CPU."""

    cloud: PointCloud
    confirmed: DepthMap
    photo: Tensor | None  # [H, W, 3] uint8
    known: int
    confident: int
    needed: int  # of the neighbours, how many had to agree


def arrived(loaded: Loaded, judged: Judged) -> Arrived:
    """Wait for what is on its way from the device."""
    count, known, confident, needed = judged.counts.arrived()[0].tolist()
    columns = [getattr(judged.cloud, f.name)[:count] for f in fields(PointCloud)]
    photo = [] if loaded.photo is None else [loaded.photo]
    *parts, confirmed = Departure(*columns, *photo, judged.confirmed.depth).arrived()
    cloud = PointCloud(*parts[: len(columns)])
    shown = None if loaded.photo is None else parts[-1]
    return Arrived(cloud, DepthMap(confirmed, judged.confirmed.camera), shown, known, confident, needed)


def rehearse(config: FusionConfig, device: torch.device, apart: bool = False) -> None:
    """Call judge_fast, on two tiny maps: who compiles kernels learns which they are.

    `apart`: views are compared as if none had come before, as workers of a cluster do it.
    """
    camera = Camera(torch.eye(3), torch.eye(4), 8, 8)
    ones = torch.ones(8, 8, device=device)
    one = DepthMap(ones, camera, ones)
    photo = torch.zeros(8, 8, 3, dtype=torch.uint8, device=device)
    loaded = Loaded(one, one, photo, ones.long().sum())
    # Also by counts of views, whatever is asked for now: who asks for them later finds all kernels compiled.
    for rule in {config.rule_for(None), type(config)().rule_for(None)}:
        judge_fast(loaded, [(1, one)], None if apart else UsedPixels(2), config, rule, 0, torch.float32)


def _counts(points: Tensor, loaded: Loaded, needed: Tensor) -> Departure:
    return Departure(torch.stack([points, loaded.known, loaded.depth_map.valid.sum(), needed]))


def _numbers(reference: Camera, source: Camera) -> list[float]:
    """There, back, and the size of the source's map: a row for the kernels."""
    there, back = transfer(reference, source), transfer(source, reference)
    flat = [value for matrix, vector in (there, back) for row in (*matrix, vector) for value in row]
    return [*flat, float(source.width), float(source.height)]


def _pinhole(camera: Camera) -> Tensor:
    """[30] float64: inverse of K, rotation, translation, K."""
    one = camera.to("cpu", torch.float64)
    pose = one.cam_from_world
    return torch.cat([inverse_3x3(one.K).flatten(), pose[:3, :3].flatten(), pose[:3, 3], one.K.flatten()])
