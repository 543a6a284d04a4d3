"""`gbinet depth`: depth maps only."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from gbinet.cli.cluster_options import ClusterFlags, ClusterOptions
from gbinet.cli.options import (
    BY_EXIF,
    Images,
    Masks,
    NearFar,
    NetworkFlags,
    NetworkOptions,
    Out,
    RefineCameras,
    otherwise,
    range_of,
)
from gbinet.cli.place_options import UNPLACED, PlaceFlags
from gbinet.cli.progress import StepBars
from gbinet.cli.say import say, say_notes
from gbinet.scenes.sfm.cameras import CameraSharing


def run(
    scene: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCENE")],
    out: Out,
    max_size: int = 1152,
    views: int = 5,
    stages: Annotated[int | None, otherwise("as the weights were trained", "INT")] = None,
    depth_range: NearFar = None,
    images: Images = None,
    masks: Masks = None,
    camera: Annotated[CameraSharing | None, BY_EXIF] = None,
    refine_cameras: RefineCameras = None,
    frames: int = 100,
    place: PlaceFlags = UNPLACED,
    network: NetworkFlags = NetworkOptions(),
    workers: ClusterFlags = ClusterOptions(),
    overwrite: bool = False,
    stages_report: bool = False,
) -> None:
    """Estimate a depth map for every view.

    Args:
        scene: Folder of photos, a video, or a scene with cameras (COLMAP, MVSNet, nerfstudio, RGB-D, ...).
        out: Folder for depth/<view>.npz (depth and confidence). Run again with the same folder to continue.
        max_size: Longer side of the images in pixels; larger photos are resized.
        views: Photos per depth map, including the reference view.
        stages: Number of stages of the search.
        depth_range: Nearest and farthest depth of all views, in the scene's unit. Replaces the scene's own.
        images: Folder of the photos, if they are not beside the cameras of the scene. Files outside the scene
            and this folder are not read.
        masks: Folder of masks with the names of the photos, if it is not beside them; black pixels are
            ignored in fusion.
        camera: Which photos without known cameras share one. per-folder: one camera for each subfolder;
            photos in subfolders are read too.
        frames: Largest number of frames to use from a video. Sharp frames from new positions are chosen.
        overwrite: Replace depth maps in the output folder that were made with other settings.
        stages_report: Also write stages/<view>.png for six views: depth, valid pixels and confidence of every
            stage, the pixels that the filters keep, and the fused cloud.
    """
    from gbinet.cluster.session import connected
    from gbinet.inference.predictor import DepthConfig
    from gbinet.model.gbinet import GBiNet
    from gbinet.pipeline.computing import compute_depths
    from gbinet.pipeline.output import output_folder
    from gbinet.pipeline.preparing import prepare
    from gbinet.pipeline.reconstruct import ReconstructConfig, failures
    from gbinet.pipeline.record import duration

    settings = network.settings(
        max_size=max_size, views=views, stages=stages, depth_range=range_of(depth_range)
    )
    config = DepthConfig(**settings)
    model = GBiNet.from_pretrained(network.weights)
    with output_folder(out, scene, images, masks), connected(workers.config()) as cluster, StepBars() as bars:
        reading = ReconstructConfig(
            config, images=images, masks=masks, camera=camera, refine_cameras=refine_cameras,
            frames=frames, place=place.config(),
        )  # fmt: skip
        ready = prepare(scene, out, reading, bars)
        found, shown, maps = ready.scene, partial(bars, "depth"), out / "depth"
        result = compute_depths(
            cluster, found, model, maps, config,
            overwrite=overwrite, progress=shown, accepted=partial(ready.write_to, out),
        )  # fmt: skip
        if stages_report:
            from gbinet.pipeline.stages_report import write_stages_report

            stages_shown = partial(bars, "stages")
            write_stages_report(found, model, maps, out / "stages", config, progress=stages_shown)
    for summary in (ready.posed, ready.refined, ready.place):
        if summary is not None:
            say(summary.summary())
    say_notes([*ready.notes, *found.warnings, *result.warnings, *failures(result)])
    done, kept = len(result.computed) + len(result.kept), f"{len(result.kept)} were there already"
    say(f"{done} depth maps ({kept}) in {duration(result.seconds)}: {maps}")
    if stages_report:
        say(f"every stage of some views, and the fused cloud: {out / 'stages'}")
