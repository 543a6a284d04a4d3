"""Depth maps with their photos, as fusion needs them: read ahead by threads, filtered on the device."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, GBiNetError
from gbinet.formats.image import read_image, read_mask, shrunk
from gbinet.fusion.photometric import blank, trusted
from gbinet.fusion.sky import sky
from gbinet.fusion.sources import DepthSource, RecentMaps
from gbinet.ops.transfer import to_device
from gbinet.scene import Scene, View

if TYPE_CHECKING:
    from gbinet.fusion.fuse import FusionConfig

log = logging.getLogger(__name__)
_READERS = {"cpu": 1, "cuda": 8}  # threads; while a GPU computes, all cores are free for them
OnUnreadable = Callable[[int, str], None]  # view, what is wrong with its files; may raise
_MAX_AHEAD = 8  # views that are read before they are asked for


def _warn(view: int, problem: str) -> None:
    log.warning(problem)


@dataclass(frozen=True)
class Loaded:
    """One view on the device that fuses."""

    whole: DepthMap  # as loaded, on any device
    depth_map: DepthMap  # without the pixels that the mask and the photometric filter drop
    photo: Tensor | None  # [H, W, 3] uint8 at the map's size; None where it cannot be read
    known: Tensor  # int64: pixels of `whole` that have a depth and are not masked


@dataclass(frozen=True)
class _Read:
    depth_map: DepthMap | None  # None: there is none, or it cannot be read
    mask: Tensor | None = None  # [H, W] bool
    photo: Tensor | None = None  # [H, W, 3] uint8
    problem: str = ""  # what is wrong with the view's files


class Loader:
    """Loads views, and holds `config.cached_maps` of them: those that are asked for soonest, if `uses` says
    so, else those that were used last."""

    def __init__(
        self,
        scene: Scene,
        depths: DepthSource,
        config: FusionConfig,
        device: torch.device,
        on_unreadable: OnUnreadable | None = None,
    ) -> None:
        self.scene, self.depths, self.config, self.device = scene, depths, config, device
        self._on_unreadable = on_unreadable or _warn
        self.uses: dict[int, deque[int]] = {}  # view -> when it will be asked for, in any ascending numbers
        self._held: OrderedDict[int, Loaded | None] = OrderedDict()  # the last to be used are last
        self._coming: dict[int, Future[_Read]] = {}
        self._readers = ThreadPoolExecutor(_READERS.get(device.type, 1), "fusion-read")

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.shutdown(cancel_futures=True)

    def read_ahead(self, wanted: Sequence[int]) -> None:
        """Begin to read the views that are not held yet."""
        for index in wanted:
            if len(self._coming) < _MAX_AHEAD and index not in self._held:
                self._ask(index)

    def get(self, index: int) -> Loaded | None:
        """A view, or None if it has no depth map."""
        if self.uses.get(index):
            self.uses[index].popleft()
        if index in self._held:
            self._held.move_to_end(index)
            return self._held[index]
        self._ask(index)
        read = self._coming.pop(index).result()
        if read.problem:  # reported here, not when it was read ahead: by now it may be known
            self._on_unreadable(index, read.problem)
        loaded = None if read.depth_map is None else self._filtered(read.depth_map, read.mask, read.photo)
        self._held[index] = loaded
        if len(self._held) > self.config.cached_maps:
            del self._held[max(self._held, key=self._next_use)]  # the first of equal ones
        return loaded

    def _next_use(self, index: int) -> float:
        if not self.uses:
            return 0
        return self.uses[index][0] if self.uses.get(index) else inf

    def drop(self, index: int) -> None:
        """Drop a view that will not be asked for again."""
        self._held.pop(index, None)
        if isinstance(self.depths, RecentMaps):
            self.depths.drop(index)

    def _ask(self, index: int) -> None:
        if index not in self._coming:
            self._coming[index] = self._readers.submit(self._read, index)

    def _read(self, index: int) -> _Read:
        view = self.scene.views[index]
        mask = None
        try:
            found = self.depths.load(index)
            if found is None:
                return _Read(None)
            height, width = found.depth.shape
            if view.mask_path is not None:
                mask = torch.from_numpy(read_mask(view.mask_path, (width, height)))
        except FormatError as error:
            return _Read(None, problem=f"{error}; the view is left out")
        photo = self.depths.photo(index) if isinstance(self.depths, RecentMaps) else None
        try:
            return _Read(found, mask, _photo(view, height, width) if photo is None else photo)
        except GBiNetError as error:
            return _Read(found, mask, problem=f"{error}; its points are grey")

    def _filtered(self, found: DepthMap, mask: Tensor | None, photo: Tensor | None) -> Loaded:
        config = self.config
        depth = to_device(found.depth, self.device).to(torch.float32)
        keep = (depth > 0) & torch.isfinite(depth)
        if mask is not None:
            keep &= to_device(mask, self.device)
        known = keep.sum()
        photo = None if photo is None else to_device(photo, self.device)
        confidence = None
        if found.confidence is not None:
            confidence = to_device(found.confidence, self.device).to(torch.float32)
            least, sure = config.confidence_for(found.made_by), config.blank_confidence
            has_use = sure > least or not config.keep_sky
            is_blank = None if photo is None or not has_use else blank(photo)
            keep &= trusted(confidence, photo, is_blank, least, sure, config.keep_burnt_out)
            if photo is not None and is_blank is not None and not config.keep_sky:
                keep &= ~sky(photo, is_blank, confidence, sure)
        kept = DepthMap(torch.where(keep, depth, 0), found.camera, confidence)
        return Loaded(found, kept, photo, known)


def _photo(view: View, height: int, width: int) -> Tensor:
    """The photo at the depth map's size, [H, W, 3] uint8."""
    return torch.from_numpy(shrunk(read_image(view.image_path), (width, height)))
