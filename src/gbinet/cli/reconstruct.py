"""`gbinet reconstruct`: photos, or photos with poses, in; a cloud, depth maps and a report out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gbinet.cli.fusion_options import AS_IS, FusionFlags
from gbinet.cli.place_options import UNPLACED, PlaceFlags
from gbinet.errors import InputError
from gbinet.formats.cloud_files import SUFFIXES as CLOUD_SUFFIXES
from gbinet.inference.device import Precision
from gbinet.pipeline.export import ExportKind
from gbinet.scene import DepthRange
from gbinet.sfm.cameras import CameraSharing


def run(
    photos: tyro.conf.Positional[Path],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    quality: Annotated[Literal["fast", "balanced", "best"], tyro.conf.arg(aliases=["-q"])] = "balanced",
    weights: str | None = None,
    size: int | None = None,
    views: int | None = None,
    depth_range: tuple[float, float] | None = None,
    fusion: FusionFlags = AS_IS,
    images: Path | None = None,
    masks: Path | None = None,
    camera: CameraSharing | None = None,
    frames: int = 100,
    device: str = "auto",
    precision: Precision = "auto",
    max_memory: float | None = None,
    place: PlaceFlags = UNPLACED,
    export: tuple[ExportKind, ...] = (),
    mesh: Literal["tsdf", "poisson", "textured"] | None = None,
    mesh_voxel: float | None = None,
    mesh_faces: int = 100_000,
    overwrite: bool = False,
) -> None:
    """Make a dense cloud from photos.

    Args:
        photos: Folder of photos, a video, or a scene with poses (COLMAP, MVSNet, nerfstudio, RGB-D, ...).
        out: Folder for cloud.ply, depth/, report.html, run.json. Run again with the same folder to continue.
        quality: Sets size, views and thresholds, which the options below change one by one.
        weights: Name of bundled weights, a weights file of gbinet, or a published .ckpt.
        size: Longer side of the images in pixels; larger photos are made smaller.
        views: Photos per depth map, the reference included.
        depth_range: NEAR FAR for all views, in the scene's unit, instead of what the scene says.
        images: Folder of the photos, if a scene with poses has them elsewhere. What lies outside the scene
            and this folder is not read.
        masks: Folder of masks named like the photos; black is ignored.
        camera: Which bare photos share one camera; by default those of the same size and EXIF camera.
            per-folder also reads the folders in the folder.
        frames: Photos taken from a video, at most: sharp ones that show something new.
        device: auto, cpu, cuda, cuda:1, mps.
        precision: auto is float16 on CUDA and float32 elsewhere.
        max_memory: GiB that the network may use; larger images are cut into tiles.
        export: Also write scene and depth maps for COLMAP, OpenMVS or nerfstudio, or depth maps as pictures,
            into out/export; or the cloud as out/cloud.las, .laz or .xyz. Several are fine.
        mesh: Also write mesh.ply (needs the extra 'mesh'): tsdf keeps to what photos confirmed, poisson
            closes holes; textured paints the photos onto tsdf, as mesh.glb and mesh.obj.
        mesh_voxel: Edge of the voxels of --mesh tsdf and textured, in the scene's unit; 2 pixels by default.
        mesh_faces: Triangles of a textured mesh, at most.
        overwrite: Replace depth maps in the output folder that were made with other settings.
    """
    from gbinet.cli.progress import StageBars
    from gbinet.cli.say import say, say_notes
    from gbinet.model.gbinet import GBiNet
    from gbinet.pipeline import reconstruct as pipeline
    from gbinet.pipeline.record import duration

    if out.suffix.lower() in CLOUD_SUFFIXES and not out.is_dir():
        raise InputError(
            f"{out}: -o is a folder here; --export {out.suffix[1:]} also writes the cloud like this"
        )
    config = pipeline.preset(quality)
    depth = {
        "max_size": size,
        "views": views,
        "depth_range": None if depth_range is None else DepthRange(*depth_range),
        "device": device,
        "precision": precision,
        "max_memory": max_memory,
    }
    config = replace(
        config,
        depth=replace(config.depth, **given(depth)),
        fusion=fusion.applied(config.fusion),
        images=images,
        masks=masks,
        camera=camera,
        frames=frames,
        place=place.config(),
        export=export,
        mesh=mesh,
        mesh_voxel=mesh_voxel,
        mesh_faces=mesh_faces,
    )
    model = GBiNet.from_pretrained(weights)
    with StageBars() as bars:
        result = pipeline.run(photos, model, out, config, overwrite=overwrite, progress=bars)
    if result.poses is not None:
        say(result.poses.summary())
    if result.place is not None:
        say(result.place.summary())
    say_notes(result.warnings)
    if result.depth.kept:
        say(f"{len(result.depth.kept)} depth maps were there already, {len(result.depth.computed)} are new.")
    for path in result.extras:
        say(f"also: {path}")
    say(f"{result.points:,} points in {duration(result.seconds)}: {result.cloud}")
    say(f"look at {result.report}")


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Only what was asked for."""
    return {key: value for key, value in values.items() if value is not None}
