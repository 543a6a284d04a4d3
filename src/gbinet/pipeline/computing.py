"""Depth maps and clouds by this process, or by the workers of a cluster: the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gbinet.cluster.depth import estimate_depths_on
from gbinet.cluster.fusion import views_on
from gbinet.cluster.session import Cluster
from gbinet.cluster.tasks import Tasks
from gbinet.formats.cloud_files import CloudWriter
from gbinet.formats.cloud_tiles import TileWriter
from gbinet.fusion.fuse import FusedView, FusionConfig, FusionResult, fuse
from gbinet.fusion.sources import DepthSource
from gbinet.inference.depth_run import DepthRun, Keeper
from gbinet.inference.device import pick_device
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.progress import Progress
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder


def compute_depths(
    cluster: Cluster | None,
    scene: Scene,
    model: GBiNet,
    out: Path,
    config: DepthConfig,
    *,
    overwrite: bool,
    progress: Progress | None,
    keeper: Keeper | None = None,
) -> DepthRun:
    """See `estimate_depths`. Nobody keeps maps that other machines computed."""
    if cluster is not None:
        return estimate_depths_on(cluster, scene, model, out, config, overwrite=overwrite, progress=progress)
    return estimate_depths(scene, model, out, config, overwrite=overwrite, progress=progress, keeper=keeper)


def compute_cloud(
    cluster: Cluster | None,
    scene: Scene,
    depths: DepthSource,  # what this process reads; a cluster reads files
    files: DepthFolder,
    path: Path,
    config: FusionConfig,
    *,
    device: str,
    progress: Progress | None,
    on_view: Callable[[FusedView], None] | None,
    wants: Callable[[int], bool],
    writer: CloudWriter | None = None,
) -> FusionResult:
    """See `fuse`. `wants`: of which views `on_view` needs depth map and photo beside the points."""
    views = None if cluster is None else views_on(cluster, scene, files, config, device, wants)
    where = pick_device(device) if cluster is None else "cpu"
    return fuse(
        scene, depths, path, config,
        device=where, progress=progress, on_view=on_view, views=views, writer=writer,
    )  # fmt: skip


def tile_writer(cluster: Cluster | None, folder: Path, edge: float) -> TileWriter:
    """A cloud as tiles, which the machines of a cluster write side by side."""
    return TileWriter(folder, edge, None if cluster is None else Tasks(cluster))
