"""From photos to a cloud: structure from motion, the network, fusion and the report in one run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gbinet.cluster.session import Cluster, ClusterConfig, connected
from gbinet.errors import GBiNetError, InputError, check_positive
from gbinet.formats.atomic import write_json
from gbinet.formats.optional import installed
from gbinet.fusion.fuse import FusionConfig, FusionResult
from gbinet.fusion.mesh import Mesher, MeshKind, check_libraries
from gbinet.fusion.sources import MAX_BYTES, RecentMaps
from gbinet.georeference.place import Georeference, PlaceConfig
from gbinet.inference.depth_run import DepthRun
from gbinet.inference.device import give_back_memory, pick_device
from gbinet.inference.predictor import DepthConfig
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.computing import compute_cloud, compute_depths, fusing_beside
from gbinet.pipeline.export import ExportKind, check_exports, export
from gbinet.pipeline.kernels import prepare_kernels, preparing_beside
from gbinet.pipeline.opening import step_of
from gbinet.pipeline.output import output_folder
from gbinet.pipeline.preparing import Prepared, prepare, with_georeference
from gbinet.pipeline.record import ReportCollector, record_of, report_of, with_poses, with_refinement
from gbinet.pointcloud import PointCloud
from gbinet.progress import Progress, StepProgress
from gbinet.provenance import maker
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.refine.outcome import Refinement
from gbinet.scenes.sfm.cameras import CameraSharing
from gbinet.scenes.sfm.pose import PosedPhotos
from gbinet.viewer.report import write_report


@dataclass(frozen=True)
class ReconstructConfig:
    """Everything that decides what comes out."""

    depth: DepthConfig = field(default_factory=DepthConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    images: Path | None = None  # folder of the photos, where a scene with poses has them elsewhere
    masks: Path | None = None  # folder of masks named like the photos; 0 = ignore
    camera: CameraSharing | None = None  # which bare photos share a camera; None = by size and EXIF
    refine_cameras: bool | None = None  # correct given cameras that are nearly right; None = of RGB-D folders
    frames: int = 100  # photos taken from a video, at most
    place: PlaceConfig = field(default_factory=PlaceConfig)  # GPS, known positions or a length
    export: tuple[ExportKind, ...] = ()  # also write scene, depth maps or cloud for other programs
    mesh: MeshKind | None = None  # also write mesh.ply, or mesh.glb and mesh.obj (needs open3d)
    mesh_voxel: float | None = None  # edge for "tsdf", scene units; None = 2 pixels at the median depth
    mesh_faces: int = 100_000  # triangles of a textured mesh, at most

    def __post_init__(self) -> None:
        if self.mesh_voxel is not None:
            check_positive("--mesh-voxel", self.mesh_voxel)
        check_positive("--mesh-faces", self.mesh_faces)


# The settings of each quality; all of them can still be set one by one.
PRESETS: dict[str, ReconstructConfig] = {
    "fast": ReconstructConfig(DepthConfig(max_size=640, views=4), FusionConfig()),
    "balanced": ReconstructConfig(DepthConfig(max_size=1152, views=5), FusionConfig()),
    "best": ReconstructConfig(DepthConfig(max_size=1920, views=7), FusionConfig(max_reprojection=0.75)),
}


@dataclass(frozen=True)
class Reconstruction:
    """The result of a run."""

    out: Path
    scene: Scene
    cloud: Path
    report: Path
    points: int
    depth: DepthRun
    seconds: float
    warnings: tuple[str, ...]
    extras: tuple[Path, ...] = ()  # exports and meshes
    poses: PosedPhotos | None = None  # outcome of structure from motion, where it was needed
    place: Georeference | None = None  # where its frame lies on the map, where known
    refined: Refinement | None = None  # outcome of refining the given cameras, where that was done


def reconstruct(
    scene: Scene | str | Path,
    model: GBiNet | None = None,
    out: str | Path | None = None,
    config: ReconstructConfig | str = "balanced",
    *,
    cluster: ClusterConfig | str | None = None,
    progress: StepProgress | None = None,
) -> PointCloud:
    """Make a dense cloud from photos.

    Args:
        scene: A folder of bare photos, a folder with cameras (see `load_scene`), or a Scene.
        model: The network; None = the bundled weights.
        out: Folder for all that `gbinet reconstruct` writes: cloud.ply, depth/, report.html, run.json. A
            second call with the same folder continues where the first one stopped. None = nothing is kept.
        config: "fast", "balanced" or "best", or a ReconstructConfig of your own: `preset("fast")` of
            `gbinet.pipeline.reconstruct` gives one, and `dataclasses.replace` changes it.
        cluster: "local" for Ray over all GPUs or cores of this machine, the address of a running Ray, or a
            ClusterConfig; None = this process computes. The result is the same.
        progress: Called with (step, done, total, what) while it works.

    Returns:
        The cloud with xyz [N, 3] in the scene's unit, rgb, normals, confidence and num_views. `run` of this
        module does the same without loading the cloud into memory.

    Raises:
        SceneError: If the folder holds no photos, or their cameras cannot be found.
        InputError: If a setting is impossible.

    Example:
        >>> import gbinet
        >>> cloud = gbinet.reconstruct("my-scene", out="result", config="fast")
        >>> cloud.xyz.shape[1], cloud.rgb.dtype
        (3, torch.uint8)
    """
    workers = ClusterConfig(cluster) if isinstance(cluster, str) else cluster
    with tempfile.TemporaryDirectory(prefix="gbinet-") if out is None else nullcontext(out) as folder:
        result = run(scene, model, Path(folder), config, cluster=workers, progress=progress)
        return PointCloud.load(result.cloud)


def run(
    scene: Scene | str | Path,
    model: GBiNet | None,
    out: Path,
    config: ReconstructConfig | str = "balanced",
    *,
    overwrite: bool = False,
    cluster: ClusterConfig | None = None,
    progress: StepProgress | None = None,
    judge: Callable[[Path], Sequence[tuple[str, str]]] | None = None,
) -> Reconstruction:
    """Depth maps, cloud.ply, report.html and run.json in `out`; finished work there is kept.

    `judge` may look at the finished cloud and add figures (label, value) to the report.
    """
    settings = preset(config) if isinstance(config, str) else config
    with output_folder(out, scene, settings.images, settings.masks), connected(cluster) as workers:
        return _run(scene, model, out, settings, overwrite, workers, progress, judge)


def _run(
    source: Scene | str | Path,
    model: GBiNet | None,
    out: Path,
    config: ReconstructConfig,
    overwrite: bool,
    cluster: Cluster | None,
    progress: StepProgress | None,
    judge: Callable[[Path], Sequence[tuple[str, str]]] | None,
) -> Reconstruction:
    began = time.perf_counter()
    network = model or GBiNet.from_pretrained()
    settings = _checked(config, network, cluster)
    with preparing_beside(source, network, settings) if cluster is None else nullcontext():
        prepared = prepare(source, out, settings, progress)
    scene, posed, place, notes = prepared.scene, prepared.posed, prepared.place, prepared.notes
    times = {"opening": time.perf_counter() - began}
    if cluster is None:
        prepare_kernels(scene, network, settings, progress)
    times["kernels"] = time.perf_counter() - began - times["opening"]
    computed = _compute(prepared, network, out, settings, overwrite, cluster, progress)
    collector, depth_run, fusion = computed.collector, computed.depth_run, computed.fusion
    times |= {"depth": depth_run.seconds, "fusion": computed.fusion_seconds}
    times = _with_poses(times, posed)
    notes += collector.warnings(
        cameras_given=posed is None and prepared.refined is None,
        refined_depth=network.config.readout == "refined"
        and settings.depth.stages in (None, network.config.stages),
    )
    extras = _extras(collector, out, settings, notes, place)
    warnings = (*notes, *scene.warnings, *depth_run.warnings, *failures(depth_run), *fusion.warnings)
    figures = judge(out / "cloud.ply") if judge else ()
    seconds = time.perf_counter() - began
    record = record_of(scene, network, settings, depth_run, fusion, {**times, "total": seconds}, warnings)
    record["poses"] = None if posed is None else posed.to_dict()
    record["refined_cameras"] = None if prepared.refined is None else prepared.refined.to_dict()
    record["georeference"] = None if place is None else place.to_dict()
    record["files"] = [path.relative_to(out).as_posix() for path in extras]
    page = report_of(scene, record, collector, depth_run, fusion, seconds, warnings)
    page = with_refinement(with_poses(page, posed, source), prepared.refined)
    page = with_georeference(page, place, bare=posed is not None)
    report = write_report(out / "report.html", replace(page, numbers=[*figures, *page.numbers]))
    write_json(out / "run.json", record)
    return Reconstruction(
        out=out,
        scene=scene,
        cloud=out / "cloud.ply",
        report=report,
        points=fusion.points,
        depth=depth_run,
        seconds=seconds,
        warnings=warnings,
        extras=extras,
        poses=posed,
        place=place,
        refined=prepared.refined,
    )


@dataclass(frozen=True)
class _DepthAndCloud:
    """What depth and fusion of a run give."""

    depth_run: DepthRun
    fusion: FusionResult
    fusion_seconds: float  # after the last depth map
    collector: ReportCollector


def _compute(
    prepared: Prepared,
    network: GBiNet,
    out: Path,
    settings: ReconstructConfig,
    overwrite: bool,
    cluster: Cluster | None,
    progress: StepProgress | None,
) -> _DepthAndCloud:
    """Depth maps and cloud.ply; what fusion shows on the way is collected for the report."""
    scene = prepared.scene
    files = DepthFolder(scene, out / "depth")
    recent = RecentMaps(files, 0 if cluster else _room(settings.depth))
    collector: ReportCollector  # of the last try of fusion

    def fuse_all() -> FusionResult:
        nonlocal collector
        collector = ReportCollector(scene, recent, settings.fusion)
        collector.mesher = _mesher(collector, settings, prepared.place, step_of(progress, "mesh"))
        return compute_cloud(
            cluster, scene, recent, files, out / "cloud.ply", settings.fusion, device=settings.depth.device,
            progress=step_of(progress, "fusion"), on_view=collector.add, wants=collector.wants,
        )  # fmt: skip

    with fusing_beside(recent, fuse_all, step_of(progress, "depth")) as (wait_for_cloud, depth_progress):
        depth_run = compute_depths(
            cluster, scene, network, out / "depth", settings.depth, overwrite=overwrite,
            progress=depth_progress, accepted=partial(prepared.write_to, out), keeper=recent,
        )  # fmt: skip
        give_back_memory(torch.device("cpu"))  # left by reading and writing; the report needs much
        depth_done = time.perf_counter()
        fusion = wait_for_cloud()
    return _DepthAndCloud(depth_run, fusion, time.perf_counter() - depth_done, collector)


def _checked(config: ReconstructConfig, network: GBiNet, cluster: Cluster | None) -> ReconstructConfig:
    """The settings with the least confidence of these weights; raises now what would fail after hours."""
    if config.mesh is not None:
        check_libraries(config.mesh)
    check_exports(config.export)
    if cluster is not None:
        cluster.has_gpus(config.depth.device)
    made_by = maker(network, config.depth.stages).to_dict()
    rule = config.fusion.rule_for(made_by)
    fusion = replace(
        config.fusion,
        min_confidence=config.fusion.confidence_for(made_by),
        min_views=rule.min_views,
        certainty=rule.certainty,
    )
    return replace(config, fusion=fusion)


def _mesher(
    collector: ReportCollector,
    config: ReconstructConfig,
    place: Georeference | None,
    progress: Progress | None,
) -> Mesher | None:
    """The Mesher of the mesh that is asked for."""
    if config.mesh is None:
        return None
    mesher = Mesher(
        collector.scene, collector.depths, config.mesh, config.fusion, config.mesh_voxel, config.mesh_faces
    )
    mesher.progress = progress
    if place is not None and place.crs is not None:
        mesher.up = np.array([0.0, 0.0, 1.0])
    return mesher


def _with_poses(times: dict[str, float], posed: PosedPhotos | None) -> dict[str, float]:
    """Seconds of the steps; those of structure from motion are taken out of the opening."""
    if posed is None or posed.outcome is None:
        return times
    poses, opening = posed.outcome.total_seconds, times["opening"]
    # Poses that an earlier run found did not take their time in this one.
    return {**times, "poses": poses, "opening": opening - poses if poses <= opening else opening}


def _room(config: DepthConfig) -> int:
    """Bytes of GPU memory in which new maps may wait for fusion; 0 on a CPU, where files are as good."""
    device = pick_device(config.device)
    if device.type != "cuda" or config.max_memory is not None:
        return 0
    return min(MAX_BYTES, torch.cuda.mem_get_info(device)[0] // 8)


def preset(name: str) -> ReconstructConfig:
    if name not in PRESETS:
        raise InputError(f"there is no quality '{name}'; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def failures(depth_run: DepthRun) -> list[str]:
    return [f"view {name} was left out: {reason}" for name, reason in depth_run.failed.items()]


def _extras(
    collector: ReportCollector,
    out: Path,
    config: ReconstructConfig,
    notes: list[str],
    place: Georeference | None,
) -> tuple[Path, ...]:
    """Exports and mesh, where asked for; one that fails does not cost the report."""
    kinds = config.export
    if place is not None and place.crs is not None and "laz" not in kinds and installed("laspy", "lazrs"):
        kinds = (*kinds, "laz")  # what GIS programs read
    written = list[Path]()
    for kind in kinds:
        try:
            written.append(export(collector.scene, collector.depths, out, kind, place))
        except GBiNetError as error:
            notes.append(f"--export {kind} failed: {error}")
    if collector.mesher is not None:
        try:
            written += collector.mesher.write(out / "cloud.ply", out / "mesh.ply")
        except GBiNetError as error:
            notes.append(f"there is no mesh: {error}")
    return tuple(written)
