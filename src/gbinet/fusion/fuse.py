"""Depth maps -> one cloud, view by view: filter, average, drop duplicates, colour, hand on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.errors import (
    FormatError,
    GBiNetError,
    InputError,
    check_finite,
    check_positive,
    check_share,
    flag,
)
from gbinet.formats.image import read_image, read_mask
from gbinet.formats.ply import PlyWriter
from gbinet.fusion.consistency import agree, strips
from gbinet.fusion.duplicates import UsedPixels, VoxelFilter
from gbinet.fusion.photometric import trusted
from gbinet.pointcloud import PointCloud
from gbinet.progress import Progress
from gbinet.scene import Scene, View
from gbinet.scenes.neighbours import visiting_order

log = logging.getLogger(__name__)
MIN_CONFIDENCE = 0.1  # of depth maps whose weights say nothing else


@dataclass(frozen=True)
class FusionConfig:
    """What makes a depth trustworthy, and what becomes of it."""

    min_confidence: float | None = (
        None  # photometric filter: drop pixels with less; None = see `confidence_for`
    )
    blank_confidence: float = 0.6  # the same where the photo has no texture (sky, blank walls)
    keep_burnt_out: bool = False  # pixels that are white in all channels show no surface: they are dropped
    max_reprojection: float = 1.0  # geometric filter: px off after a trip to a source and back
    max_relative_depth: float = 0.01  # geometric filter: share of the depth that it may be off
    min_views: int = 3  # other views that must agree with the reference
    strict_views: bool = False  # also where few views see the same; else half of those that see it are enough
    dynamic: bool = False  # n views within n times the two thresholds are enough too, n >= min_views
    max_sources: int = 10  # how many neighbours of each view are asked
    duplicates: Literal["used-pixel", "voxel", "none"] = "used-pixel"  # one point per surface
    voxel_size: float | None = None  # edge for "voxel", scene units; None = 1.5 pixels of the first view
    box: tuple[float, float, float, float, float, float] | None = None  # keep x0 y0 z0 x1 y1 z1 only
    cached_maps: int = 11  # depth maps held at a time: a view and its neighbours; more saves reading

    def __post_init__(self) -> None:
        check_positive("fusion: max_sources", self.max_sources)
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


class DepthSource(Protocol):
    """Where depth maps come from: our files, somebody else's, or memory.

    A map has any size; it covers the view's whole image.
    """

    def load(self, index: int) -> DepthMap | None:
        """The depth map of view `index`, or None if it has none."""


@dataclass(frozen=True)
class FusedView:
    """What one view added to the cloud."""

    index: int
    cloud: PointCloud  # its new points, on the CPU
    confirmed: DepthMap  # CPU: mean depth of the views that agree; 0 where a filter said no
    photo: Tensor | None  # [H, W, 3] uint8, CPU, at the depth map's size; None where it cannot be read
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
) -> FusionResult:
    """Fuse all depth maps of a scene into the PLY file `path`; points are written as they come.

    `on_view` sees every view's share (for pictures and numbers).
    """
    config = config or FusionConfig()
    lonely, views = [], 0
    with PlyWriter(path) as writer:
        writer.append(empty_cloud(_position_type(scene)))
        for done, view in enumerate(fuse_views(scene, depths, config, device)):
            writer.append(view.cloud)
            views += 1
            if view.needed < config.min_views:
                lonely.append(scene.views[view.index].name)
            if on_view:
                on_view(view)
            if progress:
                progress(done + 1, len(scene.views), f"{writer.count:,} points")
            del view  # its points are in the file
        count = writer.count
        if views == 0:
            raise GBiNetError(f"there is no depth map to fuse in {scene.name}: estimate depth first")
    warnings = []
    if lonely:
        shown = ", ".join(lonely[:5]) + (", ..." if len(lonely) > 5 else "")
        warnings.append(
            f"few photos see what {len(lonely)} of {views} views see, so fewer than {config.min_views} "
            f"others had to agree on their points, which are less reliable ({shown}); "
            "--strict-views insists on all of them"
        )
    if count == 0:
        warnings.append(
            "no point passed the filters: lower --min-confidence or --min-views, or raise --max-reprojection"
        )
    return FusionResult(count, views, tuple(warnings))


def fuse_views(
    scene: Scene, depths: DepthSource, config: FusionConfig, device: torch.device | str = "cpu"
) -> Iterator[FusedView]:
    """The points that each view adds, neighbours after each other; holds a handful of depth maps."""
    neighbours = [view.best_sources(config.max_sources) for view in scene.views]
    load = lru_cache(maxsize=config.cached_maps)(lambda i: _load(scene.views[i], depths, i, config, device))
    used = UsedPixels(keep_unpacked=config.cached_maps)
    voxels: VoxelFilter | None = None
    position_type = _position_type(scene)
    for index in visiting_order(neighbours):
        loaded = load(index)
        if loaded is None:
            used.forget(index)
            continue
        reference = loaded.depth_map
        sources = [(i, found.depth_map) for i in neighbours[index] if (found := load(i)) is not None]
        verdict = agree(
            reference,
            [depth_map for _, depth_map in sources],
            max_distance=config.max_reprojection,
            max_relative_depth=config.max_relative_depth,
            min_sources=config.min_views,
            dynamic=config.dynamic,
            strict=config.strict_views,
        )
        fresh = verdict.consistent
        if config.duplicates == "used-pixel":
            fresh = fresh & ~used.take(index, fresh)
            for number, (i, source) in enumerate(sources):
                hit = verdict.source_pixels[number][fresh]
                used.mark(i, source.depth, hit[hit >= 0].long())
        averaged = DepthMap(verdict.depth, reference.camera, reference.confidence)
        cloud = _points(loaded.photo, averaged, fresh, verdict.num_views, position_type)
        if config.duplicates == "voxel":
            voxels = voxels or VoxelFilter(config.voxel_size or _footprint(reference, fresh))
            cloud = cloud[voxels.first_in_cell(cloud.xyz)]
        if config.box is not None:
            low, high = torch.tensor(config.box, dtype=cloud.xyz.dtype).reshape(2, 3)
            cloud = cloud[((cloud.xyz >= low) & (cloud.xyz <= high)).all(-1)]
        confirmed = DepthMap(torch.where(verdict.consistent, verdict.depth, 0).cpu(), reference.camera)
        confident = int(reference.valid.sum())
        yield FusedView(
            index, cloud, confirmed, loaded.photo, loaded.known, confident, len(sources), verdict.min_sources
        )
        del verdict, fresh, averaged, cloud, confirmed  # before the next view's are made


@dataclass(frozen=True)
class _Loaded:
    depth_map: DepthMap  # without what the mask and the photometric filter rule out
    photo: Tensor | None  # [H, W, 3] uint8, CPU
    known: int  # pixels that had a depth before


def _load(
    view: View, depths: DepthSource, index: int, config: FusionConfig, device: torch.device | str
) -> _Loaded | None:
    try:
        found = depths.load(index)
    except FormatError as error:
        log.warning("%s; the view is left out", error)
        return None
    if found is None:
        return None
    keep = found.valid.to(device)
    depth = found.depth.to(device, torch.float32)
    if view.mask_path is not None:
        size = (found.camera.width, found.camera.height)
        keep &= torch.from_numpy(read_mask(view.mask_path, size)).to(device)
    known = int(keep.sum())
    photo = _photo(view, *depth.shape)
    confidence = None if found.confidence is None else found.confidence.to(device, torch.float32)
    if confidence is not None:
        here = None if photo is None else photo.to(device)
        least = config.confidence_for(found.made_by)
        keep &= trusted(confidence, here, least, config.blank_confidence, config.keep_burnt_out)
    return _Loaded(DepthMap(torch.where(keep, depth, 0), found.camera, confidence), photo, known)


def _points(
    photo: Tensor | None, depth_map: DepthMap, select: Tensor, num_views: Tensor, position_type: torch.dtype
) -> PointCloud:
    """The selected pixels as a cloud on the CPU."""
    camera = depth_map.camera.to("cpu", torch.float64)
    chosen = select.cpu()
    xyz = camera.unproject(camera.pixel_grid()[chosen], depth_map.depth.cpu()[chosen].double())
    confidence = torch.ones_like(depth_map.depth) if depth_map.confidence is None else depth_map.confidence
    return PointCloud(
        xyz=xyz.to(position_type),
        rgb=colours(photo, depth_map.depth)[chosen],
        normals=_normals(depth_map)[select].cpu(),
        confidence=confidence[select].cpu(),
        num_views=num_views[select].clamp(max=255).to(torch.uint8).cpu(),
    )


def _normals(depth_map: DepthMap, radius: int = 2) -> Tensor:
    """Normals of the whole map, [H, W, 3], computed strip by strip; strips overlap by the window's radius."""
    height, width = depth_map.depth.shape
    parts = []
    for rows, _ in strips(depth_map):
        top, bottom = max(0, rows.start - radius), min(height, rows.stop + radius)
        camera = depth_map.camera.cropped(0, top, width, bottom - top)
        piece = DepthMap(depth_map.depth[top:bottom], camera).normals(radius)
        parts.append(piece[rows.start - top : rows.stop - top])
    return torch.cat(parts)


def empty_cloud(position_type: torch.dtype = torch.float32) -> PointCloud:
    """No points, all columns: what fusion writes has these columns whatever happens."""
    return PointCloud(
        xyz=torch.zeros(0, 3, dtype=position_type),
        rgb=torch.zeros(0, 3, dtype=torch.uint8),
        normals=torch.zeros(0, 3),
        confidence=torch.zeros(0),
        num_views=torch.zeros(0, dtype=torch.uint8),
    )


def colours(photo: Tensor | None, depth: Tensor) -> Tensor:
    """[H, W, 3] uint8: the photo, or grey where it cannot be read."""
    return torch.full((*depth.shape, 3), 128, dtype=torch.uint8) if photo is None else photo


def _photo(view: View, height: int, width: int) -> Tensor | None:
    """The photo at the depth map's size, [H, W, 3] uint8."""
    try:
        pixels = read_image(view.image_path)
    except GBiNetError as error:
        log.warning("%s; its points are grey", error)
        return None
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX)
    return torch.from_numpy(np.array(resized))


def _footprint(reference: DepthMap, select: Tensor) -> float:
    """One and a half pixels at the median depth, in scene units."""
    chosen = reference.depth[select] if bool(select.any()) else reference.depth[reference.valid]
    median = float(chosen.median()) if len(chosen) else 1.0
    return 1.5 * median / float(reference.camera.K[0, 0])


def _position_type(scene: Scene) -> torch.dtype:
    """float64 for scenes so far from the origin (map coordinates) that float32 would show steps."""
    centres = torch.stack([view.camera.centre for view in scene.views]).double()  # [V, 3]
    spread = float((centres - centres.mean(0)).norm(dim=-1).max())
    far = float(centres.mean(0).norm()) > 1000 * max(spread, 1e-9)
    return torch.float64 if far else torch.float32
