"""Sources of depth maps for fusion: files, or the memory in which they were just computed."""

from __future__ import annotations

import threading
from typing import Protocol

from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError
from gbinet.ops.transfer import Computed

MAX_BYTES = 1 << 30  # 50 views of 1600x1152 px, with confidence and photo


class DepthSource(Protocol):
    """Where depth maps come from: files of any program, or memory.

    A map may have any size; it covers the view's whole image. Several threads may load at once.
    """

    def load(self, index: int) -> DepthMap | None:
        """The depth map of view `index`, or None if it has none."""


class RecentMaps:
    """Maps and photos that were just computed, up to a number of bytes, on their device; others from files.

    The first ones are kept, because fusion visits the views in nearly the order in which they were made. To
    fuse while maps are still computed, call `await_maps`: then `load` waits until the map of its view is kept
    or settled, or until `end` says that no more will come.
    """

    def __init__(self, files: DepthSource, max_bytes: int = MAX_BYTES) -> None:
        self.files = files
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._maps: dict[int, tuple[DepthMap, Computed]] = {}
        self._photos: dict[int, tuple[Tensor, Computed]] = {}
        self._changed = threading.Condition()
        self._settled: set[int] | None = None  # views whose map is in its file, or has none; None: all
        self._aborted = False

    def keep_map(self, index: int, depth_map: DepthMap) -> None:
        """The map of a view as its file has it, on any device; there, it may still be computed."""
        parts = [t for t in (depth_map.depth, depth_map.confidence) if t is not None]
        with self._changed:
            if index not in self._maps and self._room_for(*parts):
                self._maps[index] = depth_map, Computed(depth_map.depth)
                self._changed.notify_all()  # not settled before it is in its file: `clear` may drop it first

    def keep_photo(self, index: int, photo: Tensor) -> None:
        """The photo at the size of the view's depth map, [H, W, 3] uint8."""
        with self._changed:
            if index not in self._photos and self._room_for(photo):
                self._photos[index] = photo, Computed(photo)

    def drop(self, index: int) -> None:
        """Drop the map and photo of a view that will not be asked for again."""
        with self._changed:
            if index in self._maps:
                depth_map, _ = self._maps.pop(index)
                parts = (depth_map.depth, depth_map.confidence)
                self.held_bytes -= sum(_bytes(t) for t in parts if t is not None)
            if index in self._photos:
                self.held_bytes -= _bytes(self._photos.pop(index)[0])

    def clear(self) -> None:
        """Hold nothing, now and later."""
        with self._changed:
            self._maps.clear()
            self._photos.clear()
            self.held_bytes = self.max_bytes = 0

    def load(self, index: int) -> DepthMap | None:
        with self._changed:
            while not (
                self._aborted or self._settled is None or index in self._settled or index in self._maps
            ):
                self._changed.wait()
            if self._aborted:
                raise NoMoreMapsError("no more depth maps will come")
            kept = self._maps.get(index)
        return self.files.load(index) if kept is None else kept[1].wait_for(kept[0])

    def photo(self, index: int) -> Tensor | None:
        """The photo of a view at the size of its map, [H, W, 3] uint8, if it is kept."""
        found = self._photos.get(index)
        return None if found is None else found[1].wait_for(found[0])

    # ---- maps that are still to come ----

    def await_maps(self) -> None:
        """From now on, `load` waits until its view is kept or settled."""
        self._settled = set()

    def settled(self, index: int) -> None:
        """The map of a view is in its file, or there is none."""
        with self._changed:
            if self._settled is not None:
                self._settled.add(index)
                self._changed.notify_all()

    def end(self, aborted: bool = False) -> None:
        """All views are settled; if `aborted`, every `load` raises a NoMoreMapsError."""
        with self._changed:
            self._settled, self._aborted = None, aborted
            self._changed.notify_all()

    def _room_for(self, *tensors: Tensor) -> bool:
        needed = sum(map(_bytes, tensors))
        if self.held_bytes + needed > self.max_bytes:
            return False
        self.held_bytes += needed
        return True


class NoMoreMapsError(GBiNetError):
    """The computation of depth maps was aborted; its own error says why."""


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
