"""Depth maps of a scene by many workers, written where one process would write them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gbinet.cluster.pool import Pool
from gbinet.cluster.session import Cluster
from gbinet.cluster.worker import JobMaker, ViewJob, with_absolute_paths
from gbinet.formats.atomic import remove_temporary
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.judging import rehearse
from gbinet.inference.compiling import compile_kernels, has_kernels, kinds_of
from gbinet.inference.depth_run import DepthRun
from gbinet.inference.device import pick_device
from gbinet.inference.finished import FinishedMaps, making_maps
from gbinet.inference.predictor import DepthConfig, DepthWorker, depth_order
from gbinet.model.gbinet import GBiNet
from gbinet.progress import Progress
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.nearest import split_into_boxes

_GROUP = 64  # views, at most, that a worker takes at a time: what they share is encoded once


@dataclass(frozen=True)
class _ViewDone:
    """What a worker reports about one view."""

    run: DepthRun  # since the last view
    encoded: list[int]  # photos that were encoded for it


class DepthJob(ViewJob):
    """Depth maps by one worker, which keeps network, kernels, graphs and features between views."""

    def __init__(self, scene: Scene, model: GBiNet, config: DepthConfig, finished: FinishedMaps) -> None:
        device = pick_device(config.device)
        if has_kernels(device):
            kinds = kinds_of(scene, model, config)
            compile_kernels(model, config, kinds, lambda: rehearse(FusionConfig(), device, apart=True))
        self.worker = DepthWorker(scene, model, config, finished, on_unreadable=self.refuse)
        del self.worker.result.warnings[: len(finished.notes)]  # the driver reports these

    def begin(self, item: int, following: Sequence[int], lost: dict[int, str]) -> Callable[[], Any]:
        self.lost.update(lost)
        write = self.worker.begin(item, following)
        run = self.worker.result
        self.worker.result = replace(
            run, computed=[], failed={}, warnings=[], network_seconds=0.0
        )  # tile, device and precision stay
        encoded = list(self.worker.cache.encoded.elements())
        self.worker.cache.encoded.clear()

        def finish() -> tuple[_ViewDone, None]:
            if write is not None:
                write.result()  # raises what writing raised
            return _ViewDone(run, encoded), None

        return finish


def estimate_depths_on(
    cluster: Cluster,
    scene: Scene,
    model: GBiNet,
    out: Path,
    config: DepthConfig,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    accepted: Callable[[], None] | None = None,
) -> DepthRun:
    """`estimate_depths` by many workers. All machines must see photos and `out` under the same paths."""
    began = time.perf_counter()
    scene, out = with_absolute_paths(scene), out.absolute()
    with making_maps(out, scene, model, config, overwrite=overwrite, accepted=accepted) as finished:
        total = _compute(cluster, scene, model, config, finished, progress)
        folders = {DepthFolder(scene, out).path(i).parent for i in range(len(scene.views))}
        remove_temporary(out, *folders)  # of workers that died
        total.check(scene)
    total.seconds = time.perf_counter() - began
    return total


def _compute(
    cluster: Cluster,
    scene: Scene,
    model: GBiNet,
    config: DepthConfig,
    finished: FinishedMaps,
    progress: Progress | None,
) -> DepthRun:
    order = depth_order(scene)
    names = [view.name for view in scene.views]
    todo = [i for i in order if i not in finished.kept]
    total = DepthRun(kept=[names[i] for i in order if i in finished.kept], warnings=list(finished.notes))
    if not todo:
        return total
    encoded: set[int] = set()
    on_gpu = cluster.has_gpus(config.device)
    share = config if on_gpu else worker_share(config, cluster)
    make = cluster.ray.put(JobMaker(DepthJob, (scene, model, share, finished)))
    computed: set[int] = set()
    with Pool(cluster, make, on_gpu) as pool:
        groups = nearby_groups(scene, todo, min(_GROUP, -(-len(todo) // max(1, pool.size()))))
        for done, (view, result, _) in enumerate(pool.results(groups), 1):
            _add(total, result.run)
            total.encoded += len(result.encoded)
            encoded.update(result.encoded)
            if names[view] not in result.run.failed:
                computed.add(view)
            if progress:
                progress(len(total.kept) + done, len(order), names[view])
    total.computed = [names[i] for i in todo if i in computed]
    total.encoded_again = total.encoded - len(encoded)
    total.failed = {names[i]: total.failed[names[i]] for i in order if names[i] in total.failed}
    return total


def worker_share(config: DepthConfig, cluster: Cluster) -> DepthConfig:
    """The settings with a worker's share of a machine's memory. (A GPU's worker has all of its memory.)"""
    workers = max(1, max(cluster.machines(), default=0) // cluster.worker_cores())
    limit = None if config.max_memory is None else config.max_memory / workers
    return replace(config, max_memory=limit, cache_memory=config.cache_memory / workers)


def nearby_groups(scene: Scene, todo: Sequence[int], size: int) -> list[list[int]]:
    """Groups of at most `size` views whose cameras are near each other, each in the order of `todo`."""
    position = {view: number for number, view in enumerate(todo)}
    centres = torch.stack([view.camera.centre for view in scene.views]).double()
    groups = [box.tolist() for box in split_into_boxes(centres, torch.tensor(todo), size)]
    return sorted((sorted(group, key=position.__getitem__) for group in groups), key=lambda g: position[g[0]])


def _add(total: DepthRun, part: DepthRun) -> None:
    total.failed |= part.failed
    total.warnings += [text for text in part.warnings if text not in total.warnings]
    total.network_seconds += part.network_seconds
    total.device, total.precision = part.device, part.precision
    if part.tile is not None:
        total.tile = min(part.tile, total.tile or part.tile)
