"""Options that several verbs share. As a parameter of a verb, a group's flags carry no prefix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from gbinet.fusion.fuse import FusionConfig
from gbinet.inference.device import Precision
from gbinet.scene import DepthRange, Scene
from gbinet.scenes.kinds import readable, writers

if TYPE_CHECKING:
    KindName = str
    WriterName = str
else:  # what the lists of kinds and writers hold
    KindName = Literal[tuple(readable())]
    WriterName = Literal[tuple(writers())]


@dataclass(frozen=True)
class SceneOptions:
    """How a scene is read."""

    depth_range: tuple[float, float] | None = None
    """NEAR FAR for all views, in the scene's unit, instead of what the scene says."""
    images: Path | None = None
    """Folder of the photos, if a scene with poses has them elsewhere. What lies outside the scene and this
    folder is not read."""
    masks: Path | None = None
    """Folder of masks named like the photos, if it is not beside them; black is ignored."""

    @property
    def limits(self) -> DepthRange | None:
        return None if self.depth_range is None else DepthRange(*self.depth_range)

    def load(self, folder: Path, kind: str | None) -> Scene:
        from gbinet.cli.progress import progress_bar
        from gbinet.scenes.load import load_scene

        with progress_bar() as progress:
            return load_scene(
                folder,
                kind=kind,
                depth_range=self.limits,
                images=self.images,
                masks=self.masks,
                progress=progress,
            )


@dataclass(frozen=True)
class NetworkOptions:
    """Which network runs, and on what."""

    weights: str | None = None
    """Name of bundled weights, a weights file of gbinet, or a published .ckpt."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    precision: Precision = "auto"
    """auto is float16 on CUDA and float32 elsewhere."""
    max_memory: float | None = None
    """GiB that the network may use; larger images are cut into tiles."""

    def settings(self, **others: Any) -> dict[str, Any]:
        """What is not None of these and the others, as fields of DepthConfig."""
        every = {"device": self.device, "precision": self.precision, "max_memory": self.max_memory, **others}
        return {key: value for key, value in every.items() if value is not None}


@dataclass(frozen=True)
class MeshOptions:
    """A mesh beside the cloud."""

    mesh: Literal["tsdf", "poisson"] | None = None
    """Also write a mesh (extra 'mesh'): tsdf keeps to what photos confirmed, poisson closes holes."""
    mesh_voxel: float | None = None
    """Edge of the voxels of --mesh tsdf, in the scene's unit; 2 pixels by default."""


@dataclass(frozen=True)
class FusionOptions:
    """What was asked for on the command line; None leaves it as it is."""

    min_confidence: float | None = None
    """Drop pixels whose confidence is lower (0 to 1). By default what suits the weights: 0.1 for bundled, 0.4
    for published ones. Maps without confidence keep all."""
    blank_confidence: float | None = None
    """The same where the photo has no texture, such as sky and blank walls (usually 0.6)."""
    keep_burnt_out: bool = False
    """Keep pixels that are white in all channels."""
    min_views: int | None = None
    """Other views that must agree with a point (usually 3; 2 with --quality fast)."""
    strict_views: bool = False
    """Insist on --min-views even where few photos see the same; otherwise half of those are enough."""
    max_reprojection: float | None = None
    """Pixels that a point may be off between two views (usually 1; 0.75 with --quality best)."""
    max_relative_depth: float | None = None
    """Share of its depth that a point may be off between two views (usually 0.01)."""
    dynamic: bool = False
    """Also accept n views within n times these two thresholds."""
    duplicates: Literal["used-pixel", "voxel", "none"] | None = None
    """How a surface that many views see is kept once (usually used-pixel)."""
    voxel_size: float | None = None
    """Cell of --duplicates voxel, in the scene's unit."""
    box: tuple[float, float, float, float, float, float] | None = None
    """Keep only x0 y0 z0 x1 y1 z1."""

    def applied(self, base: FusionConfig) -> FusionConfig:
        """The base with what was asked for."""
        return replace(base, **{key: value for key, value in vars(self).items() if value is not None})


_FLAGS = tyro.conf.arg(name="")
SceneFlags = Annotated[SceneOptions, _FLAGS]
NetworkFlags = Annotated[NetworkOptions, _FLAGS]
MeshFlags = Annotated[MeshOptions, _FLAGS]
FusionFlags = Annotated[FusionOptions, _FLAGS]
