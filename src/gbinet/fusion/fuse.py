"""Depth maps -> one cloud, view by view: filter, average, drop duplicates, colour, hand on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError, InputError, check_finite, check_positive, check_share, flag
from gbinet.formats.cloud_files import CloudWriter, cloud_writer
from gbinet.fusion.comparing import Compared, Comparer, position_type_of
from gbinet.fusion.duplicates import UsedPixels, VoxelFilter
from gbinet.fusion.judging import arrived
from gbinet.fusion.points import empty_cloud
from gbinet.fusion.sources import DepthSource
from gbinet.pointcloud import PointCloud
from gbinet.progress import Progress
from gbinet.scene import Scene

MIN_CONFIDENCE = 0.1  # of depth maps whose weights do not state another one
CERTAINTY = 0.9  # of points, where confidence is a probability
MIN_VIEWS = 3  # that agree with a point, where it is none
_MAX_PENDING = 2  # views whose points are copied or written while the next one is compared


@dataclass(frozen=True)
class FusionConfig:
    """What makes a depth trustworthy, and what becomes of it."""

    # Photometric filter: drop pixels with less (maps without any: keep all); None = see `confidence_for`
    min_confidence: float | None = None
    blank_confidence: float = 0.6  # the same where the photo has no texture (sky, blank walls)
    keep_burnt_out: bool = False  # pixels that are white in all channels show no surface: they are dropped
    keep_sky: bool = False  # sky, and its fringe on roofs, is dropped: see gbinet.fusion.sky
    max_reprojection: float = 1.0  # geometric filter: px off after a trip to a source and back
    max_relative_depth: float = 0.01  # geometric filter: share of the depth that it may be off
    # Other views that must agree with the reference, whatever their confidence; None = see `rule_for`
    min_views: int | None = None
    # Least probability, by the confidences of all views, that a point is right; None = see `rule_for`
    certainty: float | None = None
    strict_views: bool = False  # also where few views see the same; else half of those that see it are enough
    dynamic: bool = False  # n views within n times the two thresholds are enough too, n >= min_views
    max_sources: int = 10  # how many neighbours of each view are asked
    duplicates: Literal["used-pixel", "voxel", "none"] = "used-pixel"  # one point per surface
    voxel_size: float | None = None  # edge for "voxel", scene units; None = 1.5 pixels of the first view
    box: tuple[float, float, float, float, float, float] | None = None  # keep x0 y0 z0 x1 y1 z1 only
    # Depth maps held at a time: a view, its neighbours, some of the next; saves reading.
    cached_maps: int = 16

    def __post_init__(self) -> None:
        check_positive("fusion: --max-sources", self.max_sources)
        check_positive("fusion: cached_maps", self.cached_maps)
        for name in ("max_reprojection", "max_relative_depth"):
            check_positive(f"fusion: {flag(name)}", getattr(self, name))
        if self.min_views is not None:
            check_positive("fusion: --min-views", self.min_views)
        if self.certainty is not None and not 0 <= self.certainty < 1:
            raise InputError(f"fusion: --certainty must be at least 0 and below 1, got {self.certainty}")
        check_share(f"fusion: {flag('blank_confidence')}", self.blank_confidence)
        if self.min_confidence is not None:
            check_share(f"fusion: {flag('min_confidence')}", self.min_confidence)
        if self.voxel_size is not None:
            check_positive("fusion: --voxel-size", self.voxel_size)
        if self.box is None:
            return
        check_finite("fusion: the six numbers of --box", *self.box)
        if any(low >= high for low, high in zip(self.box[:3], self.box[3:], strict=True)):
            raise InputError(f"fusion: --box must be x0 y0 z0 x1 y1 z1 with x0 < x1 etc., got {self.box}")

    def confidence_for(self, maker: Mapping[str, object] | None) -> float:
        """The least confidence of a depth map: as configured, as its weights state, or MIN_CONFIDENCE."""
        if self.min_confidence is not None:
            return self.min_confidence
        stated = (maker or {}).get("min_confidence")
        return float(stated) if isinstance(stated, int | float) and 0 <= stated <= 1 else MIN_CONFIDENCE

    def rule_for(self, maker: Mapping[str, object] | None) -> Rule:
        """What other views must say of a depth map: as given. Else, by certainty where the confidence of the
        weights that made it is a probability, or by the number of views that agree."""
        counting = self.min_views is not None or self.dynamic
        certainty = self.certainty
        if certainty is None:
            probable = (maker or {}).get("probability") is True
            certainty = CERTAINTY if probable and not counting else 0.0
        counted = certainty == 0 and self.certainty is None  # a given 0 leaves it to the one other view
        return Rule(self.min_views or (MIN_VIEWS if counted else 1), certainty)


@dataclass(frozen=True)
class Rule:
    """When a point of a depth map counts as confirmed: both must hold."""

    min_views: int  # so many other views agree (fewer where few see the same, unless `strict_views`)
    certainty: float  # it is right with this probability; 0 = no matter


@dataclass(frozen=True)
class FusedView:
    """What one view added to the cloud."""

    index: int
    cloud: PointCloud  # its new points, on the CPU
    confirmed: DepthMap  # CPU: mean depth of the views that agree; 0 where a filter said no
    depth_map: DepthMap | None  # before any filter, on any device; None = not asked for
    photo: Tensor | None  # [H, W, 3] uint8, CPU, at the map's size; None = cannot be read, or not asked for
    known: int  # pixels with a depth
    confident: int  # of these, past the photometric filter
    asked: int  # neighbours that had a depth map
    needed: int  # of these, how many had to agree
    wanted: int  # how many should have, if enough of them saw the same

    @property
    def consistent(self) -> Tensor:
        """[H, W] bool: pixels that passed all filters."""
        return self.confirmed.depth > 0


@dataclass(frozen=True)
class FusionResult:
    """Counts of a whole fusion."""

    points: int
    views: int  # that had a depth map
    warnings: tuple[str, ...]


def fuse(
    scene: Scene,
    depths: DepthSource,
    path: Path,
    config: FusionConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    on_view: Callable[[FusedView], None] | None = None,
    views: Generator[Callable[[], FusedView], None, None] | None = None,
    writer: CloudWriter | None = None,
) -> FusionResult:
    """Fuse all depth maps of a scene into the cloud `path` (.ply, .las, .laz, .xyz), written as points come.

    A thread writes while the next views are compared; it calls `on_view` with what every view adds, in order.
    `views`: used (and closed) instead of `begin_views`. `writer`: used instead of one for `path`.
    """
    config = config or FusionConfig()
    weak, done = list[str](), 0  # names of views that few others confirm; views that are done
    computing = torch.device(device)
    stream = torch.cuda.current_stream(computing) if computing.type == "cuda" else None
    with writer or cloud_writer(path) as cloud, ThreadPoolExecutor(1, "fusion-write") as worker:
        cloud.append(empty_cloud(position_type_of(scene)))

        def complete(finish: Callable[[], FusedView]) -> tuple[int, bool]:
            """Write the points of a view; returns its index and whether few others see the same."""
            with torch.cuda.stream(stream):  # this thread too: its copies wait for fusion alone
                view = finish()
                cloud.append(view.cloud)
                if on_view:
                    on_view(view)
            return view.index, view.needed < view.wanted

        def finish_oldest() -> None:
            nonlocal done
            index, seen_by_few = pending.popleft().result()
            done += 1
            if seen_by_few:
                weak.append(scene.views[index].name)
            if progress:
                progress(done, len(scene.views), f"{cloud.count:,} points")

        pending = deque[Future[tuple[int, bool]]]()
        try:
            # Closed whatever happens here, so that the workers of a cluster end before their owner does.
            with closing(views or begin_views(scene, depths, config, device)) as begun:
                for finish in begun:
                    pending.append(worker.submit(complete, finish))
                    if len(pending) > _MAX_PENDING:
                        finish_oldest()
            while pending:
                finish_oldest()
        except BaseException:
            worker.shutdown(cancel_futures=True)
            raise
        count = cloud.count
        if done == 0:
            raise GBiNetError(
                f"there is no depth map of {scene.name} that can be fused: estimate depth first, or mend "
                "what the warnings say about its views"
            )
    return FusionResult(count, done, tuple(_warnings(count, done, weak)))


def _warnings(points: int, views: int, weak: list[str]) -> Iterator[str]:
    """What a user should know about the cloud. `weak`: names of views that few others confirm."""
    if weak:
        names = ", ".join(weak[:5]) + (", ..." if len(weak) > 5 else "")
        yield (
            f"few photos see what {len(weak)} of {views} views see, so fewer others than usual "
            f"had to agree on their points, which are less reliable ({names}); "
            "take more photos there, closer together, or drop these points with --strict-views"
        )
    if points == 0:
        yield (
            "no point passed the filters: lower --min-confidence, --certainty or --min-views, "
            "or raise --max-reprojection"
        )


def fuse_views(
    scene: Scene, depths: DepthSource, config: FusionConfig, device: torch.device | str = "cpu"
) -> Iterator[FusedView]:
    """What each view adds, neighbours after each other; a handful of depth maps are in memory."""
    for finish in begin_views(scene, depths, config, device):
        yield finish()


def begin_views(
    scene: Scene, depths: DepthSource, config: FusionConfig, device: torch.device | str = "cpu"
) -> Generator[Callable[[], FusedView], None, None]:
    """What each view adds, as functions that wait until its points are copied from the device.

    Call all of them, in this order, in any thread.
    """
    used = UsedPixels(keep_unpacked=config.cached_maps)
    finisher = _Finisher(config, torch.device(device))
    with Comparer(scene, depths, config, device) as comparer:
        for index, following in comparer.in_order():
            found = comparer.compare(index, used, following)
            if found is None:
                used.drop(index)
                continue
            finish = partial(finisher, index, found)
            # Only CPU and CUDA can be used by several threads: on other devices, finish in this one.
            yield finish if comparer.device.type in ("cpu", "cuda") else partial(_identity, finish())
            del finish, found  # before those of the next view are made


def _identity(view: FusedView) -> FusedView:
    return view


class _Finisher:
    """Brings what a view adds to the CPU, and selects among its points by those of the views before."""

    def __init__(self, config: FusionConfig, device: torch.device) -> None:
        self.selection = Selection(config)
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __call__(self, index: int, found: Compared) -> FusedView:
        with torch.cuda.stream(self.stream):  # the same for all threads: nothing is overtaken
            share = arrived(found.loaded, found.judged)
            footprint = partial(footprint_of, found.loaded.depth_map, found.judged.fresh)
            cloud = self.selection(share.cloud, footprint)
        counts = (share.known, share.confident, found.asked, share.needed, found.wanted)
        return FusedView(index, cloud, share.confirmed, found.loaded.whole, share.photo, *counts)


class Selection:
    """Selects the points inside the box; with duplicates="voxel", only the first one in every voxel."""

    def __init__(self, config: FusionConfig) -> None:
        self.config = config
        self.voxels: VoxelFilter | None = None

    def __call__(self, cloud: PointCloud, footprint: Callable[[], float]) -> PointCloud:
        if self.config.duplicates == "voxel":
            self.voxels = self.voxels or VoxelFilter(self.config.voxel_size or footprint())
            cloud = cloud[self.voxels.first_in_cell(cloud.xyz)]
        if self.config.box is not None:
            low, high = torch.tensor(self.config.box, dtype=cloud.xyz.dtype).reshape(2, 3)
            cloud = cloud[((cloud.xyz >= low) & (cloud.xyz <= high)).all(-1)]
        return cloud


def footprint_of(reference: DepthMap, select: Tensor) -> float:
    """One and a half pixels at the median depth, in scene units."""
    chosen = reference.depth[select] if bool(select.any()) else reference.depth[reference.valid]
    median = float(chosen.median()) if len(chosen) else 1.0
    return 1.5 * median / float(reference.camera.K[0, 0])
