"""`gbinet reconstruct`: photos, or photos with poses, in; a cloud, depth maps and a report out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gbinet.cli.cluster_options import ClusterFlags, ClusterOptions
from gbinet.cli.options import (
    BY_EXIF,
    FusionFlags,
    FusionOptions,
    MeshFlags,
    MeshOptions,
    NetworkFlags,
    NetworkOptions,
    Out,
    RefineCameras,
    SceneFlags,
    SceneOptions,
)
from gbinet.cli.place_options import UNPLACED, PlaceFlags
from gbinet.cli.progress import StepBars
from gbinet.cli.say import say, say_notes, tell
from gbinet.errors import InputError
from gbinet.formats.cloud_files import is_cloud_name
from gbinet.pipeline.export import ExportKind
from gbinet.scenes.sfm.cameras import CameraSharing

if TYPE_CHECKING:
    from gbinet.pipeline.reconstruct import Reconstruction

Quality = Annotated[Literal["fast", "balanced", "best"], tyro.conf.arg(aliases=["-q"])]


@dataclass(frozen=True)
class _Chosen:
    quality: Quality = "balanced"


def command(arguments: Sequence[str]) -> Callable[..., None]:
    """The verb, its options' defaults being those of the quality that is asked for."""
    from gbinet.pipeline.reconstruct import preset

    chosen, _ = tyro.cli(_Chosen, args=arguments, return_unknown_args=True, add_help=False)
    base = preset(chosen.quality)
    return partial(
        run, max_size=base.depth.max_size, views=base.depth.views, fusion=FusionOptions.of(base.fusion)
    )


def run(
    photos: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="PHOTOS")],
    out: Out,
    quality: Quality = "balanced",
    max_size: int = 1152,
    views: int = 5,
    network: NetworkFlags = NetworkOptions(),
    fusion: FusionFlags = FusionOptions(),
    scene: SceneFlags = SceneOptions(),
    camera: Annotated[CameraSharing | None, BY_EXIF] = None,
    refine_cameras: RefineCameras = None,
    frames: int = 100,
    place: PlaceFlags = UNPLACED,
    export: Annotated[tuple[ExportKind, ...], tyro.conf.arg(help_behavior_hint="(default: nothing)")] = (),
    mesh: MeshFlags = MeshOptions(),
    workers: ClusterFlags = ClusterOptions(),
    overwrite: bool = False,
) -> None:
    """Make a dense point cloud from photos.

    Args:
        photos: Folder of photos, a video, or a scene with cameras (COLMAP, MVSNet, nerfstudio, RGB-D, ...).
        out: Folder for cloud.ply, depth/, report.html, run.json. Run again with the same folder to continue.
        quality: Sets --max-size, --views and --max-reprojection. The defaults below are those of the chosen
            quality.
        max_size: Longer side of the images in pixels; larger photos are resized.
        views: Photos per depth map, including the reference view.
        camera: Which photos without known cameras share one. per-folder: one camera for each subfolder;
            photos in subfolders are read too.
        frames: Largest number of frames to use from a video. Sharp frames from new positions are chosen.
        export: Also write the scene and depth maps for COLMAP, OpenMVS or nerfstudio, or depth maps as
            images, into out/export, or the cloud as out/cloud.las, .laz or .xyz. You can list several.
        overwrite: Replace depth maps in the output folder that were made with other settings.
    """
    from gbinet.model.gbinet import GBiNet
    from gbinet.pipeline import reconstruct as pipeline

    if is_cloud_name(out) and not out.is_dir():
        raise InputError(f"{out}: -o is a folder here; --export {out.suffix[1:]} writes such a cloud into it")
    config = pipeline.preset(quality)
    depth = network.settings(max_size=max_size, views=views, depth_range=scene.limits)
    config = replace(
        config,
        depth=replace(config.depth, **depth),
        fusion=fusion.applied(config.fusion),
        images=scene.images,
        masks=scene.masks,
        camera=camera,
        refine_cameras=refine_cameras,
        frames=frames,
        place=place.config(),
        export=export,
        mesh=mesh.mesh,
        mesh_voxel=mesh.mesh_voxel,
        mesh_faces=mesh.mesh_faces,
    )
    model = GBiNet.from_pretrained(network.weights)
    with StepBars() as bars:
        result = pipeline.run(
            photos, model, out, config, overwrite=overwrite, cluster=workers.config(), progress=bars
        )
    _report(result)


def _report(result: Reconstruction) -> None:
    """What came of it, for people and with --json for programs."""
    from gbinet.formats.reading import read_json
    from gbinet.pipeline.record import duration

    for step in (result.poses, result.refined, result.place):
        if step is not None:
            say(step.summary())
    say_notes(result.warnings)
    if result.depth.kept:
        say(f"{len(result.depth.kept)} depth maps were there already, {len(result.depth.computed)} are new.")
    for path in result.extras:
        say(f"also: {path}")
    say(f"{result.points:,} points in {duration(result.seconds)}: {result.cloud}")
    say(f"look at {result.report}")
    tell(
        {
            "out": result.out,
            "cloud": result.cloud,
            "report": result.report,
            "scene": result.out / "scene.json",
            "also": list(result.extras),
            **read_json(result.out / "run.json"),
        }
    )
