"""Options that several verbs share. As a parameter of a verb, a group's flags carry no prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tyro

from gbinet.errors import InputError
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


def otherwise(what: str, metavar: str) -> Any:
    """How an option that may be left out is shown: what then happens, and what it takes."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {what})")


# Options of several verbs that are no group.
Out = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
OutFile = Annotated[
    Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH", help_behavior_hint="(default: no file)")
]
Assets = Annotated[Path | None, otherwise("generated shapes and textures", "PATH")]
Images = Annotated[Path | None, otherwise("beside the cameras", "FOLDER")]
Masks = Annotated[Path | None, otherwise("those of the scene", "FOLDER")]
Weights = Annotated[str | None, otherwise("the bundled weights", "WEIGHTS")]
NearFar = Annotated[tuple[float, float] | None, otherwise("each view's own", "NEAR FAR")]
RecognisedKind = Annotated[KindName | None, otherwise("as recognised", f"{{{','.join(readable())}}}")]
RefineCameras = Annotated[
    bool | None,
    tyro.conf.DisallowNone,  # a flag and its opposite, or neither
    tyro.conf.arg(
        help_behavior_hint="(default: only for RGB-D folders, up to 500 views)",
        help="Correct inaccurate cameras of the scene (phones, headsets, SLAM, GPS) by matches between the "
        "photos. Coordinate frame and scale stay the same.",
    ),
]
Factor = Annotated[float, tyro.conf.arg(metavar="FACTOR")]
StatedFactor = Annotated[float | None, otherwise("as stated beside the files, else 1", "FACTOR")]
Device = Annotated[
    str,
    tyro.conf.arg(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps. auto uses a GPU if there is one."),
]


def range_of(limits: tuple[float, float] | None) -> DepthRange | None:
    """What --depth-range says."""
    if limits is not None and not 0 < limits[0] < limits[1] < math.inf:
        raise InputError(
            f"--depth-range NEAR FAR must satisfy 0 < NEAR < FAR, got {limits[0]:g} {limits[1]:g}"
        )
    return None if limits is None else DepthRange(*limits)


BY_EXIF = tyro.conf.arg(
    metavar="{shared,per-folder,per-photo}",
    help_behavior_hint="(default: those with the same size and EXIF camera)",
)


def _size(words: list[str]) -> tuple[int, int]:
    width, cross, height = words[0].lower().partition("x")
    if not (cross and width.isdigit() and height.isdigit() and int(width) and int(height)):
        raise InputError(f"--size is WIDTHxHEIGHT in pixels, for example 1600x1152, not '{words[0]}'")
    return int(width), int(height)


# Where pictures are made: --size 1600x1152. How large photos are looked at is --max-size, their longer side.
Size = Annotated[
    tuple[int, int],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="WxH",
        instance_from_str=_size,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda size: [f"{size[0]}x{size[1]}"],
    ),
]


@dataclass(frozen=True)
class SceneOptions:
    """How a scene is read."""

    depth_range: NearFar = None
    """Nearest and farthest depth of all views, in the scene's unit. Replaces the scene's own."""
    # Folder of the photos, if they are not beside the cameras of the scene. Files outside the scene and this
    # folder are not read.
    images: Images = None
    masks: Masks = None
    """Folder of masks with the names of the photos, if it is not beside them; black pixels are ignored."""

    @property
    def limits(self) -> DepthRange | None:
        return range_of(self.depth_range)

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

    weights: Weights = None
    """Name of bundled weights, a weights file of gbinet, or a published .ckpt."""
    device: Device = "auto"
    precision: Precision = "auto"
    """auto is float16 on CUDA, bfloat16 for part of the network on CPUs that support it, else float32."""
    max_memory: Annotated[float | None, otherwise("all available memory", "GIB")] = None
    """GiB of memory that the network can use; larger images are processed in tiles."""

    def settings(self, **others: Any) -> dict[str, Any]:
        """What is not None of these and the others, as fields of DepthConfig."""
        every = {"device": self.device, "precision": self.precision, "max_memory": self.max_memory, **others}
        return {key: value for key, value in every.items() if value is not None}


@dataclass(frozen=True)
class MeshOptions:
    """A mesh beside the cloud."""

    # Also write a mesh (extra 'mesh'): tsdf contains only confirmed surfaces, poisson closes holes, textured
    # is tsdf with a texture from the photos, as .glb and .obj.
    mesh: Annotated[
        Literal["tsdf", "poisson", "textured"] | None, otherwise("none", "{tsdf,poisson,textured}")
    ] = None
    mesh_voxel: Annotated[float | None, otherwise("2 pixels", "SIZE")] = None
    """Voxel size of --mesh tsdf and textured, in the scene's unit."""
    mesh_faces: int = 100_000
    """Largest number of triangles of a textured mesh."""


@dataclass(frozen=True)
class FusionOptions:
    """What was asked for on the command line; None leaves it to the weights or to the cloud."""

    min_confidence: Annotated[
        float | None,
        otherwise("set by the weights: bundled 0.1, published 0.4, calibrated 0.5; else 0.1", "0..1"),
    ] = None
    """Drop pixels with a lower confidence. Depth maps without confidence keep all pixels."""
    blank_confidence: float = FusionConfig().blank_confidence
    """The same where the photo has no texture, such as sky and blank walls."""
    keep_burnt_out: bool = False
    """Keep overexposed pixels, which are white in all channels."""
    keep_sky: bool = False
    """Keep sky (areas without texture and confident depth that reach the top of the photo) and its fringe."""
    certainty: Annotated[
        float | None, otherwise("0.9 if confidence is a probability and --min-views is not set", "0..1")
    ] = None
    """Minimum probability that a point is correct, given the confidences of all views that see it."""
    min_views: Annotated[int | None, otherwise("1 with --certainty, else 3", "INT")] = None
    """Number of other views that must agree with a point, whatever their confidence."""
    strict_views: bool = False
    """Require --min-views even where few photos see a surface; otherwise half of them are enough."""
    max_reprojection: float = FusionConfig().max_reprojection
    """Largest reprojection error between two views, in pixels."""
    max_relative_depth: float = FusionConfig().max_relative_depth
    """Largest difference in depth between two views, as a fraction of the depth."""
    dynamic: bool = False
    """Also accept points on which n views agree within n times both thresholds."""
    duplicates: Literal["used-pixel", "voxel", "none"] = FusionConfig().duplicates
    """How to merge points that several views share."""
    voxel_size: Annotated[float | None, otherwise("1.5 pixels of the first view", "SIZE")] = None
    """Cell size of --duplicates voxel, in the scene's unit."""
    box: Annotated[
        tuple[float, float, float, float, float, float] | None, otherwise("everything", "X0 Y0 Z0 X1 Y1 Z1")
    ] = None
    """Keep only points in this box, in the scene's unit."""

    @classmethod
    def of(cls, config: FusionConfig) -> Self:
        """What a configuration says, as it is shown and changed on the command line."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    def applied(self, base: FusionConfig) -> FusionConfig:
        """The base with what was asked for."""
        return replace(base, **{key: value for key, value in vars(self).items() if value is not None})


_FLAGS = tyro.conf.arg(name="")
SceneFlags = Annotated[SceneOptions, _FLAGS]
NetworkFlags = Annotated[NetworkOptions, _FLAGS]
MeshFlags = Annotated[MeshOptions, _FLAGS]
FusionFlags = Annotated[FusionOptions, _FLAGS]
