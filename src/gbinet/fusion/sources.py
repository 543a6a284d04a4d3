"""Where fusion has its depth maps from: files, or the memory in which they were just computed."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gbinet.depthmap import DepthMap

MAX_BYTES = 1 << 30  # 50 views of 1600x1152 px, with confidence and photo


class DepthSource(Protocol):
    """Where depth maps come from: our files, somebody else's, or memory.

    A map has any size; it covers the view's whole image. Several threads may ask at once.
    """

    def load(self, index: int) -> DepthMap | None:
        """The depth map of view `index`, or None if it has none."""


class RecentMaps:
    """Maps and photos that were just computed, up to a number of bytes, on their device; others from files.

    The first ones are kept, because fusion visits the views in nearly the order in which they were made.
    """

    def __init__(self, files: DepthSource, max_bytes: int = MAX_BYTES) -> None:
        self.files = files
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._maps: dict[int, DepthMap] = {}
        self._photos: dict[int, Tensor] = {}

    def keep_map(self, index: int, depth_map: DepthMap) -> None:
        """The map of a view as its file has it, on any device."""
        parts = [t for t in (depth_map.depth, depth_map.confidence) if t is not None]
        if index not in self._maps and self._room_for(*parts):
            self._maps[index] = depth_map

    def keep_photo(self, index: int, photo: Tensor) -> None:
        """The photo at the size of the view's depth map, [H, W, 3] uint8."""
        if index not in self._photos and self._room_for(photo):
            self._photos[index] = photo

    def clear(self) -> None:
        """Hold nothing, now and later."""
        self._maps.clear()
        self._photos.clear()
        self.held_bytes = self.max_bytes = 0

    def load(self, index: int) -> DepthMap | None:
        return self._maps.get(index) or self.files.load(index)

    def photo(self, index: int) -> Tensor | None:
        return self._photos.get(index)

    def _room_for(self, *tensors: Tensor) -> bool:
        needed = sum(t.numel() * t.element_size() for t in tensors)
        if self.held_bytes + needed > self.max_bytes:
            return False
        self.held_bytes += needed
        return True
