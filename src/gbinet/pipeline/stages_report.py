"""Pictures of the search: every stage of a few views, what the filters kept, the fused cloud."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gbinet.fusion.fuse import FusedView, FusionConfig, fuse
from gbinet.inference.device import pick_device
from gbinet.inference.predictor import DepthConfig
from gbinet.inference.tiles import working_size
from gbinet.model.gbinet import GBiNet
from gbinet.progress import Progress
from gbinet.scene import DepthRange, Scene
from gbinet.scenes.dataset import MVSDataset, SampleConfig
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.training.validate import Prediction, predict
from gbinet.viewer.report_cloud import CloudSample, side_views
from gbinet.viewer.splat import splat
from gbinet.viewer.stages import Pixels, ViewStages, write_sheet

VIEWS = 6  # views that get a sheet, spread over the scene


def write_stages_report(
    scene: Scene,
    model: GBiNet,
    depths: Path,
    out: Path,
    config: DepthConfig | None = None,
    fusion: FusionConfig | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Fuse the depth maps in `depths` into out/cloud.ply and write a sheet out/<view>.png for some views.

    The stages are searched again, in float32 on whole images: what was written may differ by rounding.
    """
    config, fusion = config or DepthConfig(), fusion or FusionConfig()
    device = pick_device(config.device)
    folder = DepthFolder(scene, depths)
    known = folder.known()
    chosen = known[:: max(1, -(-len(known) // VIEWS))]
    consistent: dict[int, Tensor] = {}  # of the chosen views
    sample = CloudSample()

    def keep(view: FusedView) -> None:
        sample.add(view.cloud)
        if view.index in chosen:
            consistent[view.index] = view.consistent

    fuse(scene, folder, out / "cloud.ply", fusion, device=device, progress=progress, on_view=keep)
    ranges = config.depth_range
    model = model.to(device)
    written = []
    for done, index in enumerate(sorted(consistent)):  # a map that cannot be read was not fused
        view = scene.views[index]
        prediction = _predict(scene, model, index, config, ranges)
        shown = _stages(scene, index, prediction, folder, consistent[index], fusion)
        camera = view.camera.resized(prediction.image.shape[-1], prediction.image.shape[-2])
        sides = dict(side_views(sample.cloud, scene))
        shown = replace(shown, clouds={"from this view": splat(sample.cloud, camera, size=3), **sides})
        written.append(write_sheet(out / f"{view.name}.png", shown))
        if progress:
            progress(done + 1, len(consistent), view.name)
    return written


def _predict(
    scene: Scene, model: GBiNet, index: int, config: DepthConfig, given: DepthRange | None
) -> Prediction:
    """Every stage of one view, with the truth where there is one."""
    view = scene.views[index]
    size = working_size(view.camera, config.max_size)
    views = tuple(
        replace(v, depth_range=given or v.depth_range, sources=v.sources if v is view else ())
        for v in scene.views
    )  # sources of one view alone: the only sample is this view's
    sample = SampleConfig(config.views, resize=size, need_depth=False)
    batch = MVSDataset([replace(scene, views=views)], sample)[0]
    return predict(model, batch, config.stages, keep_confidences=True)


def _stages(
    scene: Scene,
    index: int,
    prediction: Prediction,
    folder: DepthFolder,
    consistent: Tensor,  # [H, W] bool: pixels that passed all filters
    fusion: FusionConfig,
) -> ViewStages:
    """As arrays, at the size of the depth map that was written."""
    written = folder.load(index)
    assert written is not None  # it was fused
    depth = written.depth.cpu().numpy()
    confidence = np.ones_like(depth) if written.confidence is None else written.confidence.cpu().numpy()
    truth = prediction.truth.cpu().numpy()
    known = bool((truth > 0).any())
    photo: Pixels = (
        (prediction.image.permute(1, 2, 0).clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    )
    return ViewStages(
        name=f"{scene.name} / {scene.views[index].name}",
        photo=photo,
        depths={k: v.cpu().numpy() for k, v in prediction.centres.items()},
        confidences={k: v.cpu().numpy() for k, v in prediction.confidences.items()},
        valid={k: v.cpu().numpy() for k, v in prediction.valid.items()} if known else {},
        final=depth,
        confidence=confidence,
        min_confidence=fusion.confidence_for(written.made_by),
        consistent=consistent.cpu().numpy(),
        truth=truth if known else None,
    )
