"""Whether depth maps show that cameras are off: then even confident depths of neighbours do not agree."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError
from gbinet.formats.image import read_mask
from gbinet.fusion.consistency import reproject
from gbinet.fusion.sources import DepthSource
from gbinet.scene import Scene

_VIEWS, _SOURCES = 3, 2  # views that are tested, and best sources of each
_MIN_CONFIDENCE = 0.8
_SAME_SURFACE = 0.02  # share of the depth by which two views may differ and still mean the same surface
_MIN_PIXELS = 1000  # for a verdict
_MAX_PIXELS = 200_000  # of each view: more would take longer and say the same
_MAX_MISS = 0.3  # px in maps of up to 640 px, and in proportion in larger ones
_MIN_SHARE = 0.7


@dataclass(frozen=True)
class CamerasFit:
    """How the surfaces of neighbouring views meet.

    Bundled weights, fountain-P11 and dtu_scan37 at 512 px: with the given cameras, share 0.99 and 0.97, miss
    0.04 and 0.08 px (dtu_scan37 at 640, 1152, 1600 px: 0.08, 0.14, 0.20); every camera turned by 0.15
    degrees, miss 0.2 to 0.9 px; by 0.5 to 5 degrees, share 0.07 to 0.79, miss 0.1 to 1.9 px, or too few sure
    pixels to judge. Exact depth of rendered rooms and tables, where much is hidden: share 0.90 to 0.99.
    Networks whose depth is that of a cell miss by its width: the published one by 0.25 px on dtu_scan37 at
    640 px.
    """

    # Of the pixels that a source has a depth for, and does not surely hide: their surface is what it sees.
    share: float
    miss: float  # px, median over these: how far they come back from where they started, by way of the source
    size: int  # px, the longer side of the maps

    @property
    def apart(self) -> bool:
        """Whether most surfaces are not where the neighbours see them.

        The few pixels that agree by chance then miss by little, however wrong the cameras are.
        """
        return self.share < _MIN_SHARE

    @property
    def off(self) -> bool:
        """Whether the cameras seem to be wrong."""
        return self.apart or self.miss > _MAX_MISS * max(1.0, self.size / 640)


def cameras_fit(scene: Scene, depths: DepthSource) -> CamerasFit | None:
    """Compare the confident pixels of a few views with their neighbours; None if they are too few."""
    views = [index for index, view in enumerate(scene.views) if view.sources]
    missed, known, size = [torch.zeros(0)], 0, 0
    for index in views[:: max(1, len(views) // _VIEWS)][:_VIEWS]:
        reference = _unmasked(scene, depths, index)
        if reference is None:
            continue
        part, size = _middle(reference), max(size, *reference.depth.shape)
        for other in scene.views[index].best_sources(_SOURCES):
            source = _unmasked(scene, depths, other)
            if source is not None:
                misses, compared = _misses(part, source)
                missed.append(misses)
                known += compared
    if known < _MIN_PIXELS:
        return None
    all_missed = torch.cat(missed)
    return CamerasFit(len(all_missed) / known, float(all_missed.median()), size)


def _unmasked(scene: Scene, depths: DepthSource, index: int) -> DepthMap | None:
    """The map of a view without what its mask rules out; None where there is none, or it cannot be read."""
    try:
        found, path = depths.load(index), scene.views[index].mask_path
        if found is None or path is None:
            return found
        height, width = found.depth.shape
        mask = torch.from_numpy(read_mask(path, (width, height))).to(found.depth.device)
    except FormatError:
        return None  # fusion has said so
    return replace(found, depth=torch.where(mask, found.depth, 0))


def _misses(reference: DepthMap, source: DepthMap) -> tuple[Tensor, int]:
    """[N] px, of the confident pixels whose surface the source sees too; and how many were compared."""
    back = reproject(reference, source)
    differs = (back.depth - reference.depth) / reference.depth
    # What is nearer, and sure as well, hides the pixel's surface from the source, however right the cameras.
    hidden = (differs < -_SAME_SURFACE) & _sure(source).flatten()[back.source_pixel.clamp(min=0)]
    compared = back.distance.isfinite() & _sure(reference) & ~hidden
    return back.distance[compared & (differs.abs() <= _SAME_SURFACE)].cpu(), int(compared.sum())


def _sure(depth_map: DepthMap) -> Tensor:
    """[H, W] bool"""
    if depth_map.confidence is None:
        return torch.zeros_like(depth_map.depth, dtype=torch.bool)
    return depth_map.confidence >= _MIN_CONFIDENCE


def _middle(whole: DepthMap) -> DepthMap:
    """The middle third of a map's rows, or fewer of a large map: quicker to judge."""
    height, width = whole.depth.shape
    count = min(height - 2 * (height // 3), max(1, _MAX_PIXELS // width))
    rows = slice((height - count) // 2, (height - count) // 2 + count)
    confidence = None if whole.confidence is None else whole.confidence[rows]
    return DepthMap(
        whole.depth[rows], whole.camera.cropped(0, rows.start, width, rows.stop - rows.start), confidence
    )
