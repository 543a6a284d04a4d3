"""The record of a run that computes depth maps, and the interface for keeping its results in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.errors import SceneError
from gbinet.scene import Scene


@dataclass
class DepthRun:
    """What a run did."""

    computed: list[str] = field(default_factory=list)  # names of views
    kept: list[str] = field(default_factory=list)  # names of views finished in an earlier run
    failed: dict[str, str] = field(default_factory=dict)  # name -> why there is no depth map
    warnings: list[str] = field(default_factory=list)
    encoded: int = 0  # images encoded
    encoded_again: int = 0  # of these, a second time because the cache was too small
    tile: int | None = None  # px, if images were cut into tiles
    seconds: float = 0.0
    network_seconds: float = 0.0  # of these, inside the network
    device: str = ""
    precision: str = ""

    def check(self, scene: Scene) -> None:
        """An error if no view of the scene has a depth map."""
        if len(self.failed) == len(scene.views):
            name, reason = next(iter(self.failed.items()))
            raise SceneError(f"{scene.root}: no view could be done; {name}: {reason}")


class Keeper(Protocol):
    """Receives depth maps and photos as they are computed, on the computing device."""

    def keep_map(self, index: int, depth_map: DepthMap) -> None: ...

    def keep_photo(self, index: int, photo: Tensor) -> None:
        """[H, W, 3] uint8, at the size of the view's depth map."""

    def settled(self, index: int) -> None:
        """The map of a view has been written, or there will be none. Called by any thread."""

    def clear(self) -> None:
        """Memory ran out: drop everything, and keep nothing from now on."""


class NoKeeper:
    """Keeps nothing."""

    def keep_map(self, index: int, depth_map: DepthMap) -> None: ...

    def keep_photo(self, index: int, photo: Tensor) -> None: ...

    def settled(self, index: int) -> None: ...

    def clear(self) -> None: ...
