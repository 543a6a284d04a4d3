"""Fusion on a cluster: workers compare views in parallel; this process chooses points, view after view."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gbinet.cluster.pool import Pool, in_groups
from gbinet.cluster.session import Cluster
from gbinet.cluster.worker import JobMaker, ViewJob, with_absolute_paths
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError
from gbinet.fusion.candidates import CandidateMaker, Candidates, PointChooser
from gbinet.fusion.comparing import Comparer
from gbinet.fusion.fuse import FusedView, FusionConfig
from gbinet.inference.device import pick_device
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.neighbours import visiting_order

_GROUP = 16  # views that a worker takes at a time: each map is read about once
_AHEAD = 2  # groups per worker that may be compared before the choice comes to them


class _RequiredMaps:
    """Depth maps of a folder; it is an error if one of the known ones is missing (a slow network folder)."""

    def __init__(self, folder: DepthFolder, known: set[int]) -> None:
        self.folder, self.known = folder, known

    def load(self, index: int) -> DepthMap | None:
        found = self.folder.load(index)
        if found is None and index in self.known:
            raise FormatError(self.folder.path(index), "is not there")
        return found


class FusionJob(ViewJob):
    """Candidates for points by one worker, which keeps depth maps between views."""

    def __init__(
        self,
        scene: Scene,
        folder: DepthFolder,
        known: set[int],
        config: FusionConfig,
        device: str,
        pictures: set[int],
    ) -> None:
        self.pictures = pictures
        where = pick_device(device)
        self.maker = CandidateMaker(Comparer(scene, _RequiredMaps(folder, known), config, where, self.refuse))

    def begin(self, item: int, following: Sequence[int], lost: dict[int, str]) -> Callable[[], Any]:
        self.lost.update(lost)
        made = self.maker.make(item, following, item in self.pictures)
        return lambda: (None, made)


def views_on(
    cluster: Cluster,
    scene: Scene,
    folder: DepthFolder,
    config: FusionConfig,
    device: str,
    wants: Callable[[int], bool] | None = None,
) -> Generator[Callable[[], FusedView], None, None]:
    """`begin_views` by the workers of a cluster: the same views in the same order, bit by bit.

    wants  whether the depth map and photo of a view are needed too
    """
    scene = with_absolute_paths(scene)
    where = None if folder.folder is None else Path(folder.folder).absolute()
    folder = DepthFolder(scene, where, folder.scale)
    known = set(folder.known())
    pictures = {i for i in known if wants is not None and wants(i)}
    make = cluster.ray.put(JobMaker(FusionJob, (scene, folder, known, config, device, pictures)))
    order = visiting_order([view.best_sources(config.max_sources) for view in scene.views])
    chooser = PointChooser(config)
    for index in order:
        if index not in known:
            chooser.skip(index)
    with Pool(cluster, make, cluster.has_gpus(device)) as pool:
        groups = in_groups([i for i in order if i in known], _GROUP)
        for index, _, made in pool.results(groups, ahead=_AHEAD * _GROUP * max(1, pool.size())):
            if made is None:
                chooser.skip(index)
            else:
                yield partial(_chosen, chooser, made)


def _chosen(chooser: PointChooser, made: Candidates) -> FusedView:
    return chooser.choose(made)
