"""Views, depth ranges and scenes: what a folder of posed photos means, whatever its format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import InputError


@dataclass(frozen=True)
class DepthRange:
    """[near, far] of one reference view, in the scene's own unit."""

    near: float
    far: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.near) and math.isfinite(self.far) and 0 < self.near < self.far):
            raise InputError(
                f"depth range must satisfy 0 < near < far, got near={self.near:g}, far={self.far:g}"
            )


@dataclass(frozen=True)
class SourceView:
    """A neighbour of a reference view and how well it suits (larger is better)."""

    index: int  # into Scene.views
    score: float


@dataclass(frozen=True)
class View:
    """One posed photo. Pixels are read when they are needed (gbinet.formats.image)."""

    name: str  # unique in its scene, also the stem of files written for it
    camera: Camera  # single (no batch axes), float64, of the image as read_image returns it
    image_path: Path
    depth_range: DepthRange | None = None
    sources: tuple[SourceView, ...] = ()  # best first
    mask_path: Path | None = None  # image of the same size, 0 = ignore
    depth_path: Path | None = None  # true or measured depth, where known
    depth_scale: float = 1.0  # stored value times this = scene units
    original_path: Path | None = None  # the photo as taken, where image_path is a rewritten copy

    def best_sources(self, limit: int | None = None) -> list[int]:
        """Indices of the sources worth asking, best first: with a thousandth of the best score or more."""
        least = 0.001 * max((s.score for s in self.sources), default=0.0)
        return [s.index for s in self.sources if s.score >= least][:limit]


@dataclass(frozen=True)
class SparsePoints:
    """Points of structure from motion with the views that observe each of them (CSR layout)."""

    xyz: Tensor  # [P, 3] float64
    rgb: Tensor | None = None  # [P, 3] uint8
    view_index: Tensor | None = None  # [T] int64: views of all tracks, concatenated
    track_start: Tensor | None = None  # [P + 1] int64: track p is view_index[start[p]:start[p + 1]]


@dataclass(frozen=True)
class Scene:
    """Posed photos of one place."""

    name: str
    kind: str  # what was recognised: "colmap", "mvsnet", "nerfstudio", "rgbd", "blendedmvs", "dtu", ...
    root: Path
    views: tuple[View, ...]
    points: SparsePoints | None = None
    warnings: tuple[str, ...] = field(default=())  # what a user should know about how it was understood
