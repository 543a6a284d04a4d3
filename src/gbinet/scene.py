"""Views, depth ranges and scenes: what a folder of posed photos means, whatever its format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import InputError


@dataclass(frozen=True)
class DepthRange:
    """Where to look for surfaces: [near, far] of one reference view, in the scene's own unit.

    Attributes:
        near: Smallest depth (z).
        far: Largest depth (z).

    Raises:
        InputError: Unless 0 < near < far, both finite.

    Example:
        >>> from gbinet import DepthRange
        >>> DepthRange(0.5, 4.0)
        DepthRange(near=0.5, far=4.0)
    """

    near: float
    far: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.near) and math.isfinite(self.far) and 0 < self.near < self.far):
            raise InputError(
                f"depth range must satisfy 0 < near < far, got near={self.near:g}, far={self.far:g}"
            )


@dataclass(frozen=True)
class SourceView:
    """A neighbour of a reference view and how well it suits.

    Attributes:
        index: Into Scene.views.
        score: Larger is better.
    """

    index: int
    score: float


@dataclass(frozen=True)
class View:
    """One posed photo. Pixels are read when they are needed (gbinet.formats.image).

    Attributes:
        name: Unique in its scene; also the stem of files written for it.
        camera: Single (no batch axes), float64, of the image as read_image returns it.
        image_path: The photo.
        depth_range: Where to look for surfaces, in the scene's unit.
        sources: Neighbours, best first.
        mask_path: Image of the same size, 0 = ignore.
        depth_path: True or measured depth, where known.
        depth_scale: Stored depth times this = depth in the scene's unit.
        original_path: The photo as taken, where image_path is a rewritten copy.
    """

    name: str
    camera: Camera  # no batch axes
    image_path: Path
    depth_range: DepthRange | None = None
    sources: tuple[SourceView, ...] = ()
    mask_path: Path | None = None
    depth_path: Path | None = None
    depth_scale: float = 1.0
    original_path: Path | None = None

    def best_sources(self, limit: int | None = None) -> list[int]:
        """Choose source views.

        Args:
            limit: The most to return; None = no limit.

        Returns:
            Indices into Scene.views, best first: those with a thousandth of the best score or more.
        """
        min_score = 0.001 * max((s.score for s in self.sources), default=0.0)
        return [s.index for s in self.sources if s.score >= min_score][:limit]


@dataclass(frozen=True)
class SparsePoints:
    """Points of structure from motion with the views that observe each of them (CSR layout).

    Attributes:
        xyz: Positions, [P, 3] float64, in the scene's unit.
        rgb: Colours, [P, 3] uint8.
        view_index: Views of all tracks, concatenated, [T] int64.
        track_start: [P + 1] int64: track p is view_index[track_start[p]:track_start[p + 1]].
        error: Mean reprojection error, [P] float64, in pixels; negative where it is not known.
    """

    xyz: Tensor  # [P, 3] float64
    rgb: Tensor | None = None  # [P, 3] uint8
    view_index: Tensor | None = None  # [T] int64
    track_start: Tensor | None = None  # [P + 1] int64
    error: Tensor | None = None  # [P] float64


@dataclass(frozen=True)
class Scene:
    """Posed photos of one place. `gbinet.load_scene` makes one from a folder.

    Attributes:
        name: What to call it.
        kind: What was recognised: "colmap", "mvsnet", "nerfstudio", "rgbd", "blendedmvs", "dtu", ...
        root: The folder.
        views: The photos with their cameras.
        points: Points of structure from motion, where the scene has them.
        warnings: What you should know about how it was understood.

    Example:
        >>> import gbinet
        >>> scene = gbinet.load_scene("my-scene")
        >>> scene.kind, len(scene.views), scene.views[0].camera.width
        ('mvsnet', 5, 96)
    """

    name: str
    kind: str
    root: Path
    views: tuple[View, ...]
    points: SparsePoints | None = None
    warnings: tuple[str, ...] = ()
