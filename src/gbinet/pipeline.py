"""From photos to a cloud: where structure from motion, the network, fusion and the report meet."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from gbinet import __version__
from gbinet.data.load import list_photos, load_scene, recognise
from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError, InputError, SceneError
from gbinet.formats.atomic import atomic_path
from gbinet.fusion.fuse import FusedView, FusionConfig, FusionResult, fuse
from gbinet.fusion.mesh import Mesher, MeshKind, open3d
from gbinet.inference.device import peak_memory_mib, pick_device
from gbinet.inference.predictor import DepthConfig, DepthFolder, DepthRun, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.output import output_folder
from gbinet.pointcloud import PointCloud
from gbinet.provenance import maker
from gbinet.scene import Scene, View
from gbinet.sfm.cameras import CameraSharing
from gbinet.sfm.pose import PosedPhotos, pose_photos
from gbinet.viewer.report import CloudSample, Report, ViewCard, view_card, write_report

__all__ = ["PRESETS", "ReconstructConfig", "Reconstruction", "estimate_depths", "reconstruct", "run"]

StageProgress = Callable[[str, int, int, str], None]  # stage, done, total, what
ExportKind = Literal["colmap", "openmvs", "nerfstudio"]


@dataclass(frozen=True)
class ReconstructConfig:
    """Everything that decides what comes out."""

    depth: DepthConfig = field(default_factory=DepthConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    images: Path | None = None  # folder of the photos, where a scene with poses has them elsewhere
    masks: Path | None = None  # folder of masks named like the photos; 0 = ignore
    camera: CameraSharing | None = None  # which bare photos share a camera; None = by size and EXIF
    export: ExportKind | None = None  # also write the scene with its depth maps for another program
    mesh: MeshKind | None = None  # also write mesh.ply (needs open3d)
    mesh_voxel: float | None = None  # edge for "tsdf", scene units; None = 2 pixels at the median depth


# Quality: what most people want to choose. Everything else follows, and can still be set one by one.
PRESETS: dict[str, ReconstructConfig] = {
    "fast": ReconstructConfig(DepthConfig(max_size=640, views=4), FusionConfig(min_views=2)),
    "balanced": ReconstructConfig(DepthConfig(max_size=1152, views=5), FusionConfig()),
    "best": ReconstructConfig(DepthConfig(max_size=1920, views=7), FusionConfig(max_reprojection=0.75)),
}


@dataclass(frozen=True)
class Reconstruction:
    """What a run left behind."""

    out: Path
    scene: Scene
    cloud: Path
    report: Path
    points: int
    depth: DepthRun
    seconds: float
    warnings: tuple[str, ...]
    extras: tuple[Path, ...] = ()  # exports and meshes
    poses: PosedPhotos | None = None  # what structure from motion came to, where it was needed


def reconstruct(
    scene: Scene | str | Path,
    model: GBiNet | None = None,
    out: str | Path | None = None,
    config: ReconstructConfig | str = "balanced",
    *,
    progress: StageProgress | None = None,
) -> PointCloud:
    """A cloud from a scene, a folder with poses, or a folder of bare photos.

    With `out`, all that `gbinet reconstruct` writes is written there, and a second call goes on where the
    first one stopped. `run` is the same without loading the cloud into memory.
    """
    if out is not None:
        return PointCloud.load(run(scene, model, Path(out), config, progress=progress).cloud)
    with tempfile.TemporaryDirectory(prefix="gbinet-") as folder:
        return PointCloud.load(run(scene, model, Path(folder), config, progress=progress).cloud)


def run(
    scene: Scene | str | Path,
    model: GBiNet | None,
    out: Path,
    config: ReconstructConfig | str = "balanced",
    *,
    overwrite: bool = False,
    progress: StageProgress | None = None,
    judge: Callable[[Path], Sequence[tuple[str, str]]] | None = None,
) -> Reconstruction:
    """Depth maps, cloud.ply, report.html and run.json in `out`; finished work there is kept.

    `judge` may look at the finished cloud and add figures (label, value) to the report.
    """
    with output_folder(out, scene):
        return _run(scene, model, out, config, overwrite, progress, judge)


def _run(
    scene: Scene | str | Path,
    model: GBiNet | None,
    out: Path,
    config: ReconstructConfig | str,
    overwrite: bool,
    progress: StageProgress | None,
    judge: Callable[[Path], Sequence[tuple[str, str]]] | None,
) -> Reconstruction:
    began = time.perf_counter()
    settings = preset(config) if isinstance(config, str) else config
    if settings.mesh is not None:
        open3d()  # missing, it is said now, not after hours
    found, notes, posed = open_scene(scene, out, settings, progress)
    network = model or GBiNet.from_pretrained()
    depth_run = estimate_depths(
        found, network, out / "depth", settings.depth, overwrite=overwrite, progress=_stage(progress, "depth")
    )
    shown = _Shown(found, DepthFolder(found, out / "depth"))
    if settings.mesh is not None:
        shown.mesher = Mesher(found, shown.depths, settings.mesh, settings.fusion, settings.mesh_voxel)
    fusing = time.perf_counter()
    result = fuse(
        found,
        shown.depths,
        out / "cloud.ply",
        settings.fusion,
        device=pick_device(settings.depth.device),
        progress=_stage(progress, "fusion"),
        on_view=shown.add,
    )
    times = {"depth": depth_run.seconds, "fusion": time.perf_counter() - fusing}
    if posed is not None and posed.outcome is not None:
        times = {"poses": posed.outcome.total_seconds, **times}
    notes += shown.doubts()
    extras = _extras(shown, out, settings, notes)
    warnings = (*notes, *found.warnings, *depth_run.warnings, *_failures(depth_run), *result.warnings)
    figures = judge(out / "cloud.ply") if judge else ()
    seconds = time.perf_counter() - began
    record = _record(found, network, settings, depth_run, result, {**times, "total": seconds}, warnings)
    record["poses"] = None if posed is None else posed.to_dict()
    page = _with_poses(_report(found, record, shown, depth_run, result, seconds, warnings), posed)
    report = write_report(out / "report.html", replace(page, numbers=[*figures, *page.numbers]))
    with atomic_path(out / "run.json") as temporary:
        temporary.write_text(json.dumps(record, indent=2, default=str) + "\n")
    return Reconstruction(
        out, found, out / "cloud.ply", report, result.points, depth_run, seconds, warnings, extras, posed
    )


def preset(name: str) -> ReconstructConfig:
    if name not in PRESETS:
        raise InputError(f"there is no quality '{name}'; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def open_scene(
    source: Scene | str | Path, out: Path, config: ReconstructConfig, progress: StageProgress | None
) -> tuple[Scene, list[str], PosedPhotos | None]:
    """The scene, posed (bare photos go through structure from motion first), and what to say about it."""
    if isinstance(source, Scene):
        return source, [], None
    folder, notes = Path(source), list[str]()
    if not folder.is_dir():
        raise SceneError(f"{folder}: there is no such folder")
    given = config.depth.depth_range
    masks = config.masks
    if has_poses(folder, subfolders=config.camera == "per-folder"):
        if config.camera is not None:
            notes.append(f"--camera {config.camera} changes nothing here: the scene has its cameras already")
        read = _stage(progress, "reading")
        scene = load_scene(
            folder,
            depth_range=given,
            images=config.images,
            masks=masks,
            cache=out / "undistorted",
            progress=read,
        )
        return scene, notes, None
    if config.images is not None:
        raise InputError(
            f"{folder} has no camera poses for the photos of --images; give their folder instead"
        )
    posed = pose_photos(folder, out / "sfm", _stage(progress, "poses"), config.camera)
    scene = load_scene(
        posed.folder,
        kind="colmap",
        depth_range=given,
        masks=masks,
        cache=out / "undistorted",
        progress=_stage(progress, "reading"),
    )
    return replace(scene, name=folder.resolve().name, kind="photos"), posed.warnings(), posed


def has_poses(folder: Path, *, subfolders: bool = False) -> bool:
    """Whether a folder is a posed scene; False for bare photos; an error if it is neither."""
    try:
        recognise(folder)
    except SceneError:
        if list_photos(folder, subfolders=subfolders):
            return False
        raise
    return True


def _stage(progress: StageProgress | None, name: str) -> Callable[[int, int, str], None] | None:
    if progress is None:
        return None
    return lambda done, total, what: progress(name, done, total, what)


def _failures(depth_run: DepthRun) -> list[str]:
    return [f"view {name} was left out: {reason}" for name, reason in depth_run.failed.items()]


def _extras(shown: _Shown, out: Path, config: ReconstructConfig, notes: list[str]) -> tuple[Path, ...]:
    """Exports and mesh, where asked for; a mesh that fails does not cost the report."""
    written = []
    if config.export is not None:
        written.append(export(shown.scene, shown.depths, out, config.export))
    if shown.mesher is not None:
        try:
            written.append(shown.mesher.write(out / "cloud.ply", out / "mesh.ply"))
        except GBiNetError as error:
            notes.append(f"there is no mesh: {error}")
    return tuple(written)


def export(scene: Scene, depths: DepthFolder, out: Path, kind: ExportKind) -> Path:
    """The scene with its new depth maps (and cloud) as another program reads it, in out/export/<kind>."""
    from gbinet.formats.write_scene import write_scene
    from gbinet.formats.write_scene_nerfstudio import write_nerfstudio

    def maps() -> Iterator[tuple[View, DepthMap]]:
        for index, view in enumerate(scene.views):
            found = depths.load(index)
            if found is not None:
                yield view, found

    folder = out / "export" / kind
    if kind == "nerfstudio":
        write_nerfstudio(scene, folder, maps(), PointCloud.load(out / "cloud.ply"))
    else:
        write_scene(scene, folder, "colmap-dense" if kind == "colmap" else kind, maps())
    return folder


# ---- report and record ----


class _Shown:
    """Collects pictures, numbers, a share of the points and a mesh while fusion goes by."""

    def __init__(self, scene: Scene, depths: DepthFolder) -> None:
        self.scene = scene
        self.depths = depths
        self.sample = CloudSample()
        self.mesher: Mesher | None = None
        self.cards: dict[int, ViewCard] = {}
        self.shares: dict[str, dict[str, float]] = {}  # view name -> known, confident, kept

    def doubts(self) -> list[str]:
        """What the numbers say against the result."""
        kept = [share["kept"] for share in self.shares.values()]
        if not kept or np.mean(kept) >= 0.05:
            return []
        return [
            f"other views confirmed only {np.mean(kept):.1%} of the pixels, so the cloud has large holes: "
            "the photos may overlap too little, the depth range may be wrong, or surfaces may lack texture"
        ]

    def add(self, fused: FusedView) -> None:
        self.sample.add(fused.cloud)
        if self.mesher is not None:
            self.mesher.add(fused)
        view, depth_map = self.scene.views[fused.index], self.depths.load(fused.index)
        if depth_map is None:
            return
        pixels = depth_map.depth.numel()
        kept = int(fused.consistent.sum())
        self.shares[view.name] = {
            "known": fused.known / pixels,
            "confident": fused.confident / pixels,
            "kept": kept / pixels,
            "points": len(fused.cloud),
        }
        photo = None if fused.photo is None else fused.photo.numpy()
        facts = (
            f"{depth_map.camera.width} x {depth_map.camera.height} px · "
            f"confident {fused.confident / pixels:.0%} · kept {kept / pixels:.0%} · "
            f"{len(fused.cloud):,} new points · {fused.asked} neighbours"
        )
        self.cards[fused.index] = view_card(view.name, photo, depth_map, fused.consistent, facts)


def _report(
    scene: Scene,
    record: dict[str, Any],
    shown: _Shown,
    depth_run: DepthRun,
    result: FusionResult,
    seconds: float,
    warnings: tuple[str, ...],
) -> Report:
    kept = np.mean([s["kept"] for s in shown.shares.values()]) if shown.shares else 0.0
    numbers = [
        ("points", f"{result.points:,}"),
        ("views with depth", f"{result.views} of {len(scene.views)}"),
        ("pixels confirmed", f"{kept:.0%}"),
        ("time", duration(seconds)),
        ("computed on", f"{depth_run.device}, {depth_run.precision}"),
    ]
    used = record["settings"]
    tables = {
        "Depth": used["depth"],
        "Fusion": used["fusion"],
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
        "Made by": record["made_by"],
        "Versions": record["versions"],
    }
    return Report(
        title=f"{scene.name}: {result.points:,} points",
        subtitle=f"{len(scene.views)} views, read as {scene.kind}, from {scene.root}",
        numbers=numbers,
        warnings=warnings,
        cloud=shown.sample.cloud,
        scene=scene,
        views=[shown.cards[i] for i in sorted(shown.cards)],
        tables=tables,
    )


def _with_poses(page: Report, posed: PosedPhotos | None) -> Report:
    """The report with what structure from motion came to."""
    if posed is None or posed.outcome is None:
        return page
    placed = ("photos posed", f"{len(posed.placed)} of {len(posed.placed) + len(posed.missing)}")
    tables = {"Structure from motion": posed.outcome.facts(), **page.tables}
    return replace(page, numbers=[*page.numbers[:1], placed, *page.numbers[1:]], tables=tables)


def _record(
    scene: Scene,
    model: GBiNet,
    config: ReconstructConfig,
    depth_run: DepthRun,
    result: FusionResult,
    seconds: dict[str, float],
    warnings: tuple[str, ...],
) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "scene": {"name": scene.name, "kind": scene.kind, "root": str(scene.root), "views": len(scene.views)},
        "settings": json.loads(json.dumps(asdict(config), default=str)),
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
