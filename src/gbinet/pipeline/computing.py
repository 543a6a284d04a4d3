"""Depth maps and clouds by this process, or by the workers of a cluster: the same files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from gbinet.cluster.depth import estimate_depths_on
from gbinet.cluster.fusion import views_on
from gbinet.cluster.session import Cluster
from gbinet.cluster.tasks import Tasks
from gbinet.formats.cloud_files import CloudWriter
from gbinet.formats.cloud_tiles import TileWriter
from gbinet.fusion.fuse import FusedView, FusionConfig, FusionResult, fuse
from gbinet.fusion.sources import DepthSource, RecentMaps
from gbinet.inference.depth_run import DepthRun, Keeper
from gbinet.inference.device import give_back_memory, is_out_of_memory, pick_device
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
    accepted: Callable[[], None],
    keeper: Keeper | None = None,
) -> DepthRun:
    """`estimate_depths` here or on the cluster, where maps are not kept in memory for fusion."""
    if cluster is not None:
        return estimate_depths_on(
            cluster, scene, model, out, config, overwrite=overwrite, progress=progress, accepted=accepted
        )
    return estimate_depths(
        scene, model, out, config,
        overwrite=overwrite, progress=progress, keeper=keeper, accepted=accepted,
    )  # fmt: skip


@contextmanager
def fusing_beside(
    recent: RecentMaps, fuse_all: Callable[[], FusionResult], progress: Progress | None
) -> Iterator[tuple[Callable[[], FusionResult], Progress | None]]:
    """While the block computes depth maps into `recent`, a thread fuses those that are done.

    If nothing is kept there (no GPU, or a limit on its memory), fusion begins when all maps are computed.
    Yields a function that waits for the cloud, to be called inside the block, and the progress that the block
    should report to: it raises if fusion has failed. If the block fails, no cloud is made. If fusion runs out
    of memory beside the network, it starts again when the network is done.
    """
    if recent.max_bytes == 0:
        yield fuse_all, progress
        return
    recent.await_maps()

    def report(done: int, total: int, what: str) -> None:
        if progress:
            progress(done, total, what)
        if done < total and fusing.done():  # nobody can have fused all of them by now
            _raise_other_than_memory(fusing)

    def wait() -> FusionResult:
        recent.end()
        _raise_other_than_memory(fusing)
        if fusing.exception() is None:
            return fusing.result()
        recent.clear()
        give_back_memory(torch.device("cuda"))
        return fuse_all()

    with _short_switch_interval(), ThreadPoolExecutor(1, "fusion") as thread:
        fusing = thread.submit(fuse_all)
        try:
            yield wait, report
        except BaseException:
            recent.end(aborted=True)
            raise


def _raise_other_than_memory(work: Future[FusionResult]) -> None:
    error = work.exception()
    if error is not None and not is_out_of_memory(error):
        raise error


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Let threads wait for Python's lock (GIL) a tenth of the usual time before the holder must release it.

    Threads that keep the GPU busy need the lock for moments, many times per view; those that read, write and
    draw hold it until another thread asks for it.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


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
    """`fuse` here or on the cluster. `wants`: the views of which `on_view` needs depth map and photo too."""
    views = None if cluster is None else views_on(cluster, scene, files, config, device, wants)
    where = pick_device(device) if cluster is None else torch.device("cpu")
    with _own_stream(where):
        return fuse(
            scene, depths, path, config,
            device=where, progress=progress, on_view=on_view, views=views, writer=writer,
        )  # fmt: skip


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, give this thread a stream of its own, of high priority: its work is little and urgent."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield


def tile_writer(cluster: Cluster | None, folder: Path, edge: float) -> TileWriter:
    """A writer of tiles; the machines of a cluster write them in parallel."""
    return TileWriter(folder, edge, None if cluster is None else Tasks(cluster))
