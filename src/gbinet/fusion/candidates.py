"""Fusion in two parts, so that many machines can share it.

The points that a view could add to the cloud depend only on its neighbours' maps: `Candidates` are computed
anywhere and in any order. `PointChooser` then drops those that earlier views have added already, view after
view in the visiting order. Together they give the same as `begin_views`, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.fusion.comparing import Comparer
from gbinet.fusion.duplicates import UsedPixels
from gbinet.fusion.fuse import FusedView, FusionConfig, Selection, footprint_of
from gbinet.fusion.judging import arrived
from gbinet.pointcloud import PointCloud

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Candidates:
    """Every point that a view could add: its N consistent pixels, as arrays that can be sent elsewhere."""

    index: int
    columns: dict[str, Array]  # of a PointCloud, [N, ...]
    pixels: NDArray[np.int32]  # [N] flat index into the view's map
    depth: NDArray[np.float32]  # [N] mean of the views that agree
    camera: Camera  # of the map
    marks: dict[int, tuple[tuple[int, int], NDArray[np.int32]]]
    # later view -> its map's [H, W], and [N] the pixel there that shows the same point, -1 = none
    footprint: float  # edge of a voxel for --duplicates voxel, where none is given
    known: int
    confident: int
    asked: int
    needed: int
    wanted: int
    depth_map: DepthMap | None  # only if pictures are made
    photo: NDArray[np.uint8] | None


class CandidateMaker:
    """Makes the candidates of any view; fastest if neighbours follow each other."""

    def __init__(self, comparer: Comparer) -> None:
        self.comparer = comparer
        self._position = {view: position for position, view in enumerate(comparer.order)}

    def make(self, index: int, following: Sequence[int] = (), pictures: bool = False) -> Candidates | None:
        """What a view could add; None if it has no depth map."""
        found = self.comparer.compare(index, None, following)
        if found is None:
            return None
        loaded, judged, config = found.loaded, found.judged, self.comparer.config
        assert judged.source_pixels is not None
        share = arrived(loaded, judged)
        fresh = judged.fresh
        marks = {}
        if config.duplicates == "used-pixel":
            for number, (view, shape) in enumerate(found.sources):
                if self._position[view] > self._position[index]:  # earlier ones are in the cloud already
                    marks[view] = (shape, judged.source_pixels[number][fresh].cpu().numpy())
        columns = {f.name: getattr(share.cloud, f.name) for f in fields(PointCloud)}
        pixels = fresh.flatten().nonzero()[:, 0].to(torch.int32).cpu()
        camera = share.confirmed.camera
        return Candidates(
            index=index,
            columns={name: values.numpy() for name, values in columns.items() if values is not None},
            pixels=pixels.numpy(),
            depth=share.confirmed.depth.flatten()[pixels.long()].numpy(),
            camera=camera,
            marks=marks,
            footprint=footprint_of(loaded.depth_map, fresh) if config.duplicates == "voxel" else 0.0,
            known=share.known,
            confident=share.confident,
            asked=found.asked,
            needed=share.needed,
            wanted=found.wanted,
            depth_map=_on_cpu(loaded.whole) if pictures else None,
            photo=share.photo.numpy() if pictures and share.photo is not None else None,
        )


class PointChooser:
    """Decides which candidates become points. Call it for all views, in the visiting order."""

    def __init__(self, config: FusionConfig) -> None:
        self.config = config
        self._used = UsedPixels(keep_unpacked=config.cached_maps)
        self._selection = Selection(config)

    def skip(self, index: int) -> None:
        """A view without a depth map."""
        self._used.drop(index)

    def choose(self, found: Candidates) -> FusedView:
        camera = found.camera
        new = np.ones(len(found.pixels), bool)
        if self.config.duplicates == "used-pixel":
            used = self._used.take(found.index, _like((camera.height, camera.width)))
            new = ~used.numpy().reshape(-1)[found.pixels]
            for view, (shape, pixels) in found.marks.items():
                hit = pixels[new]
                self._used.mark(view, _like(shape), torch.from_numpy(hit[hit >= 0].astype(np.int64)))
        cloud = PointCloud(**{name: torch.from_numpy(values[new]) for name, values in found.columns.items()})
        cloud = self._selection(cloud, lambda: found.footprint)
        depth = torch.zeros(camera.height * camera.width)
        depth[torch.from_numpy(found.pixels.astype(np.int64))] = torch.from_numpy(found.depth.copy())
        confirmed = DepthMap(depth.reshape(camera.height, camera.width), camera)
        photo = None if found.photo is None else torch.from_numpy(found.photo.copy())
        counts = (found.known, found.confident, found.asked, found.needed, found.wanted)
        return FusedView(found.index, cloud, confirmed, found.depth_map, photo, *counts)


def _on_cpu(depth_map: DepthMap) -> DepthMap:
    confidence = None if depth_map.confidence is None else depth_map.confidence.cpu()
    return replace(depth_map, depth=depth_map.depth.cpu(), confidence=confidence)


def _like(shape: tuple[int, int]) -> Tensor:
    """A map of this size that takes no memory."""
    return torch.zeros(()).expand(shape)
