"""The report of a run, and its run.json."""

from __future__ import annotations

import platform
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gbinet import __version__
from gbinet.cores import usable_cores
from gbinet.formats.atomic import json_ready
from gbinet.fusion.cameras_fit import cameras_fit
from gbinet.fusion.fuse import FusedView, FusionConfig, FusionResult
from gbinet.fusion.mesh import Mesher
from gbinet.fusion.sources import DepthSource
from gbinet.inference.depth_run import DepthRun
from gbinet.inference.device import peak_memory_mib
from gbinet.model.gbinet import GBiNet
from gbinet.pointcloud import PointCloud
from gbinet.provenance import maker
from gbinet.scene import Scene
from gbinet.scenes.refine.outcome import Refinement
from gbinet.scenes.sfm.pose import PosedPhotos
from gbinet.viewer.report import Report, SmallMaps, ViewCard, shown_every, view_card
from gbinet.viewer.report_cloud import CloudSample

_MAX_THREADS = 4  # that make pictures
_MAX_PENDING = 8  # views whose pictures are being made


class ReportCollector:
    """Collects from fusion what the report shows: pictures, numbers, a sample of the points; and a mesh.

    Threads make the pictures, so that fusion does not wait for them.
    """

    def __init__(self, scene: Scene, depths: DepthSource, fusion: FusionConfig) -> None:
        self.scene = scene
        self.depths = depths
        self.fusion = fusion
        self._sample = CloudSample()
        self.mesher: Mesher | None = None
        self.fractions: dict[str, dict[str, float]] = {}  # view name -> known, confident, kept; and points
        self._cards: dict[int, Future[ViewCard]] = {}
        self._painters = ThreadPoolExecutor(min(_MAX_THREADS, usable_cores()), "pictures")
        self._sampler = ThreadPoolExecutor(1, "share")
        self._sampling: Future[None] | None = None

    def cards(self) -> list[ViewCard]:
        """The views that the report shows, in the scene's order. Call it after the last `add`."""
        self._painters.shutdown()
        return [self._cards[index].result() for index in sorted(self._cards)]

    def cloud(self) -> PointCloud:
        """The sample of the points that the report shows. Call it after the last `add`."""
        self._sample_points(None)
        self._sampler.shutdown()
        return self._sample.cloud

    def _sample_points(self, cloud: PointCloud | None) -> None:
        """Begin to sample a view's points when those of the view before are sampled: they take memory."""
        if self._sampling is not None:
            self._sampling.result()
        self._sampling = None if cloud is None else self._sampler.submit(self._sample.add, cloud)

    def warnings(self, *, cameras_given: bool, refined_depth: bool) -> list[str]:
        """Reasons to mistrust the result, each with what to do.

        Args:
            cameras_given: They were not found or refined by this run.
            refined_depth: Depth is not that of a cell of the search, whose width alone would move pixels.
        """
        kept = [fractions["kept"] for fractions in self.fractions.values()]
        if not kept:
            return []
        warnings = self._camera_warnings() if cameras_given and refined_depth else []
        if np.mean(kept) >= 0.05:
            return warnings
        may_be_off = cameras_given and not warnings
        cameras = "the cameras may be off (`gbinet info SCENE --check-cameras`), " if may_be_off else ""
        return [
            *warnings,
            f"other views confirmed only {np.mean(kept):.1%} of the pixels, so the cloud has large holes: "
            f"the photos may overlap too little, {cameras}the depth range may be wrong, or surfaces may lack "
            "texture. If depth looks right in the report, try --certainty 0.5 --max-reprojection 2; if not, "
            "try --depth-range NEAR FAR, or take more photos, closer together",
        ]

    def _camera_warnings(self) -> list[str]:
        fit = cameras_fit(self.scene, self.depths)
        if fit is None or not fit.off:
            return []
        finding = f"miss each other by {fit.miss:.1f} px"
        if fit.apart:
            finding = f"see the same surface in only {fit.share:.0%} of the pixels"
        return [
            "the cameras seem to be off: where the network is sure, depth maps of neighbouring views "
            f"{finding}; --refine-cameras may correct them, and `gbinet info SCENE --check-cameras` "
            "tells more"
        ]

    def wants(self, index: int) -> bool:
        """Whether depth map and photo of a view are needed, beside its points."""
        return self.mesher is not None or index % shown_every(len(self.scene.views)) == 0

    def add(self, fused: FusedView) -> None:
        """Collect from one view; called as fusion finishes it."""
        self._sample_points(fused.cloud)
        if self.mesher is not None:
            self.mesher.add(fused)
        view, depth_map, camera = self.scene.views[fused.index], fused.depth_map, fused.confirmed.camera
        pixels = fused.confirmed.depth.numel()
        consistent = fused.consistent
        kept = int(consistent.sum())
        self.fractions[view.name] = {
            "known": fused.known / pixels,
            "confident": fused.confident / pixels,
            "kept": kept / pixels,
            "points": len(fused.cloud),
        }
        photo = None if fused.photo is None else fused.photo.numpy()
        facts = (
            f"{camera.width} x {camera.height} px · "
            f"{fused.confident / pixels:.0%} confident ({self._confidence_asked()}) · "
            f"{kept / pixels:.0%} kept · {len(fused.cloud):,} new points · compared with {fused.asked} photos"
        )
        if depth_map is not None and fused.index % shown_every(len(self.scene.views)) == 0:
            maps = SmallMaps.of(depth_map, consistent)
            work = self._painters.submit(view_card, view.name, photo, maps, facts)
            self._cards[fused.index] = work
            for earlier in list(self._cards.values())[-1 - _MAX_PENDING : -_MAX_PENDING]:
                earlier.result()  # photos that wait for their pictures take memory

    def _confidence_asked(self) -> str:
        """The confidence that fusion asks of a pixel, in words."""
        least, blank = self.fusion.confidence_for(None), self.fusion.blank_confidence
        return f"at least {least:g}" + (f", {blank:g} where blank" if blank > least else "")


def report_of(
    scene: Scene,
    record: dict[str, Any],
    collector: ReportCollector,
    depth_run: DepthRun,
    result: FusionResult,
    seconds: float,
    warnings: tuple[str, ...],
) -> Report:
    kept = np.mean([s["kept"] for s in collector.fractions.values()]) if collector.fractions else 0.0
    numbers = [
        ("points", f"{result.points:,}"),
        ("views with depth", f"{result.views} of {len(scene.views)}"),
        ("pixels confirmed", f"{kept:.0%}"),
        ("time", duration(seconds)),
        ("computed on", f"{depth_run.device}, {depth_run.precision}"),
    ]
    used = record["settings"]
    tables = {
        "Depth": _formatted(used["depth"]),
        "Fusion": _formatted(used["fusion"]),
        "Run": {
            "views computed now": len(depth_run.computed),
            "views kept from before": len(depth_run.kept),
            "images encoded": f"{depth_run.encoded} ({depth_run.encoded_again} a second time)",
            "depth": duration(depth_run.seconds),
            "of this in the network": duration(depth_run.network_seconds),
            "fusion": duration(record["seconds"]["fusion"]),
            "peak memory": f"{record['peak_memory_mib']:.0f} MiB",
            "tiles": "none" if depth_run.tile is None else f"{depth_run.tile} px",
        },
        "Made by": _formatted(record["made_by"]),
        "Versions": record["versions"],
    }
    return Report(
        title=f"{scene.name}: {result.points:,} points",
        subtitle=f"{len(scene.views)} views, read as {scene.kind}, from {scene.root}",
        numbers=numbers,
        warnings=warnings,
        cloud=collector.cloud(),
        scene=scene,
        views=collector.cards(),
        every=shown_every(len(scene.views)),
        tables=tables,
        unit="m" if scene.kind == "rendered" else "",  # the demo's scene
    )


def _formatted(facts: dict[str, Any]) -> dict[str, Any]:
    """Settings for the report: without those that are None or only affect the speed."""
    return {k: v for k, v in facts.items() if v is not None and k not in ("cached_maps", "cache_memory")}


def with_poses(page: Report, posed: PosedPhotos | None, source: Scene | str | Path) -> Report:
    """The report with the source of bare photos, and the outcome of structure from motion."""
    if posed is None:
        return page
    page = replace(page, subtitle=f"bare photos from {source}, placed by structure from motion")
    if posed.outcome is None:
        return page
    placed = ("photos posed", f"{len(posed.placed)} of {len(posed.placed) + len(posed.missing)}")
    tables = {"Structure from motion": posed.outcome.facts(), **page.tables}
    return replace(page, numbers=[*page.numbers[:1], placed, *page.numbers[1:]], tables=tables)


def with_refinement(page: Report, refined: Refinement | None) -> Report:
    """The report with the outcome of refining the given cameras, where that was done."""
    if refined is None:
        return page
    count = ("cameras refined", f"{len(refined.refined)} of {refined.views}")
    tables = {"Refined cameras": refined.facts(), **page.tables}
    return replace(page, numbers=[*page.numbers[:1], count, *page.numbers[1:]], tables=tables)


def record_of(
    scene: Scene,
    model: GBiNet,
    config: Any,  # a dataclass: every setting
    depth_run: DepthRun,
    result: FusionResult,
    seconds: dict[str, float],
    warnings: tuple[str, ...],
) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "scene": {"name": scene.name, "kind": scene.kind, "root": str(scene.root), "views": len(scene.views)},
        "settings": json_ready(config),
        "made_by": maker(model).to_dict(),
        "points": result.points,
        "depth": asdict(depth_run),
        "seconds": {k: round(v, 3) for k, v in seconds.items()},
        "peak_memory_mib": peak_memory_mib(),
        "peak_gpu_memory_mib": torch.cuda.max_memory_allocated() / 2**20
        if torch.cuda.is_available()
        else None,
        "warnings": list(warnings),
        "versions": {
            "gbinet": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "command": sys.argv,
    }


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
