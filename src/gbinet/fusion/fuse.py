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

MIN_CONFIDENCE = 0.1  # of depth maps whose weights say nothing else
_WAITING = 2  # views whose points are on their way or being written, beside the one that is compared


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
    min_views: int = 3  # other views that must agree with the reference
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
        for name in ("max_reprojection", "max_relative_depth", "min_views"):
            check_positive(f"fusion: {flag(name)}", getattr(self, name))
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
        """The least confidence of a depth map: as given, or as the weights that made it say, or 0.1."""
        if self.min_confidence is not None:
            return self.min_confidence
        stated = (maker or {}).get("min_confidence")
        return float(stated) if isinstance(stated, int | float) and 0 <= stated <= 1 else MIN_CONFIDENCE


@dataclass(frozen=True)
class FusedView:
    """What one view added to the cloud."""

    index: int
    cloud: PointCloud  # its new points, on the CPU
    confirmed: DepthMap  # CPU: mean depth of the views that agree; 0 where a filter said no
    depth_map: DepthMap | None  # as it was made, before any filter; wherever it lies; None = nobody asked
    photo: Tensor | None  # [H, W, 3] uint8, CPU, at the map's size; None = cannot be read, or nobody asked
    known: int  # pixels with a depth
    confident: int  # of these, past the photometric filter
    asked: int  # neighbours that had a depth map
    needed: int  # of these, how many had to agree

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

    A thread writes while the next views are compared. There `on_view` sees every view's share, one after the
    other (for pictures and numbers). `views`: where others than `begin_views` make these shares (closes it).
    `writer`: where the cloud is not one file.
    """
    config = config or FusionConfig()
    lonely, done = list[str](), 0
    computing = torch.device(device)
    stream = torch.cuda.current_stream(computing) if computing.type == "cuda" else None
    with writer or cloud_writer(path) as cloud, ThreadPoolExecutor(1, "fusion-write") as worker:
        cloud.append(empty_cloud(position_type_of(scene)))

        def complete(finish: Callable[[], FusedView]) -> tuple[int, int]:
            """View and sources that it needed: all that is left of it when its points are in the file."""
            with torch.cuda.stream(stream):  # also in this thread: what is asked for waits for fusion alone
                view = finish()
                cloud.append(view.cloud)
                if on_view:
                    on_view(view)
            return view.index, view.needed

        def settled(work: Future[tuple[int, int]]) -> None:
            nonlocal done
            index, needed = work.result()
            done += 1
            if needed < config.min_views:
                lonely.append(scene.views[index].name)
            if progress:
                progress(done, len(scene.views), f"{cloud.count:,} points")

        waiting = deque[Future[tuple[int, int]]]()
        try:
            # Closed whatever happens here: what makes the shares (a cluster's workers) ends before its owner.
            with closing(views or begin_views(scene, depths, config, device)) as shares:
                for finish in shares:
                    waiting.append(worker.submit(complete, finish))
                    if len(waiting) > _WAITING:
                        settled(waiting.popleft())
            while waiting:
                settled(waiting.popleft())
        except BaseException:
            worker.shutdown(cancel_futures=True)
            raise
        count = cloud.count
        if done == 0:
            raise GBiNetError(
                f"there is no depth map of {scene.name} that can be fused: estimate depth first, or mend "
                "what was said to be wrong with views"
            )
    return FusionResult(count, done, tuple(_doubts(count, done, lonely, config.min_views)))


def _doubts(points: int, views: int, lonely: list[str], min_views: int) -> Iterator[str]:
    """What a user should know about the cloud. `lonely`: views that few others confirm."""
    if lonely:
        shown = ", ".join(lonely[:5]) + (", ..." if len(lonely) > 5 else "")
        yield (
            f"few photos see what {len(lonely)} of {views} views see, so fewer than {min_views} "
            f"others had to agree on their points, which are less reliable ({shown}); "
            "take more photos there, closer together, or drop these points with --strict-views"
        )
    if points == 0:
        yield (
            "no point passed the filters: lower --min-confidence or --min-views, or raise --max-reprojection"
        )


def fuse_views(
    scene: Scene, depths: DepthSource, config: FusionConfig, device: torch.device | str = "cpu"
) -> Iterator[FusedView]:
    """The points that each view adds, neighbours after each other; holds a handful of depth maps."""
    for finish in begin_views(scene, depths, config, device):
        yield finish()


def begin_views(
    scene: Scene, depths: DepthSource, config: FusionConfig, device: torch.device | str = "cpu"
) -> Generator[Callable[[], FusedView], None, None]:
    """The same, while the points of a view may still be on their way from the device.

    Each item waits for them. Call all of them, in this order, in whichever thread.
    """
    used = UsedPixels(keep_unpacked=config.cached_maps)
    finisher = _Finisher(config, torch.device(device))
    with Comparer(scene, depths, config, device) as comparer:
        order, last_uses = comparer.order, comparer.last_uses
        for position, index in enumerate(order):
            found = comparer.compare(index, used, order[position + 1 : position + 3])
            comparer.forget(last_uses.get(index, ()))
            if found is None:
                used.forget(index)
                continue
            finish = partial(finisher, index, found)
            # Only CPU and CUDA can be used by several threads.
            yield finish if comparer.device.type in ("cpu", "cuda") else partial(_given, finish())
            del finish, found  # before the next view's are made


def _given(view: FusedView) -> FusedView:
    return view


class _Finisher:
    """Brings a view's share to the CPU. What depends on all points so far happens here, view after view."""

    def __init__(self, config: FusionConfig, device: torch.device) -> None:
        self.selection = Selection(config)
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __call__(self, index: int, found: Compared) -> FusedView:
        with torch.cuda.stream(self.stream):  # the same for all threads: nothing is overtaken
            share = arrived(found.loaded, found.judged)
            footprint = partial(footprint_of, found.loaded.depth_map, found.judged.fresh)
            cloud = self.selection(share.cloud, footprint)
        counts = (share.known, share.confident, found.asked, share.needed)
        return FusedView(index, cloud, share.confirmed, found.loaded.whole, share.photo, *counts)


class Selection:
    """Of all points, those inside the box, and the first in every voxel where that was asked for."""

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
