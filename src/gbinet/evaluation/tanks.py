"""Tanks and Temples: precision, recall and F-score of the training scenes, as published; upload.

Cameras are aligned first (the truth comes with a reference trajectory), then the clouds (ICP with scale,
three rounds of the published schedule); both clouds are cropped to the scene's volume and averaged in voxels
of half the threshold tau.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import FormatError, InputError, SceneError
from gbinet.evaluation.align import Matrix, align_matches, icp, transformed
from gbinet.evaluation.cloud import (
    CloudDistances,
    checked,
    compare_clouds,
    harmonic_mean,
    load_points,
    share_below,
    voxel_means,
)
from gbinet.evaluation.nearest import Points
from gbinet.formats.atomic import atomic_path, write_text
from gbinet.formats.ply import read_ply
from gbinet.formats.tanks import CropVolume, read_crop, read_log, read_mapping, read_matrix
from gbinet.progress import Progress
from gbinet.scenes.tanks import scenes as split_scenes

# Threshold of each scene with public truth, metres.
TAU = {
    "Barn": 0.01,
    "Caterpillar": 0.005,
    "Church": 0.025,
    "Courthouse": 0.025,
    "Ignatius": 0.003,
    "Meetingroom": 0.01,
    "Truck": 0.005,
}
CAMERA_TOLERANCE = 0.2  # metres: cameras that agree, in the alignment of trajectories
EVERY_FRAME = 1600  # a trajectory with more poses than this lists every frame of the film
MAX_ICP_POINTS = 4_000_000  # in the last round of ICP


@dataclass(frozen=True)
class TanksReference:
    """What the benchmark provides for one training scene."""

    name: str
    tau: float  # metres
    points: Points  # [M, 3] the scan
    crop: CropVolume
    cameras: NDArray[np.float64]  # [V, 3] reference camera centres, in the frame of the scan
    mapping: NDArray[np.int64] | None  # frames of the film that the reference cameras are


@dataclass(frozen=True)
class TanksScore:
    scene: str
    tau: float
    precision: float
    recall: float
    fscore: float
    points: int  # compared, after crop and voxels
    truth_points: int
    scale: float  # of the alignment


def load_reference(folder: str | Path, tau: float | None = None) -> TanksReference:
    """Read `<Scene>/<Scene>.ply`, `.json`, `_COLMAP_SfM.log`, `_trans.txt` (and `_mapping_reference.txt`)."""
    root = Path(folder)
    name = root.resolve().name
    if not root.is_dir():
        raise SceneError(f"{root}: there is no such folder; it should hold {name}.ply, {name}.json, ...")
    if tau is None and name not in TAU:
        raise SceneError(
            f"{root}: no threshold is published for a scene '{name}'; name the folder as the benchmark does "
            f"({', '.join(TAU)}) or give --tau"
        )
    poses = read_log(root / f"{name}_COLMAP_SfM.log")
    mapping = root / f"{name}_mapping_reference.txt"
    return TanksReference(
        name,
        TAU[name] if tau is None else tau,
        load_points(root / f"{name}.ply"),
        read_crop(root / f"{name}.json"),
        transformed(poses[:, :3, 3], read_matrix(root / f"{name}_trans.txt")),
        read_mapping(mapping) if mapping.is_file() else None,
    )


def evaluate_scene(
    points: Points,
    world_from_cam: NDArray[np.float64],  # [V, 4, 4] of the cloud, one pose per image of the benchmark
    reference: TanksReference,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> tuple[TanksScore, CloudDistances]:
    checked(points, "the cloud")
    if not reference.tau > 0:
        raise InputError(f"tau must be positive, got {reference.tau:g}")
    matrix = align_cameras(world_from_cam, reference)
    matrix = refine(points, reference, matrix, device=device, progress=progress)
    size = reference.tau / 2
    cloud = voxel_means(_inside(transformed(points, matrix), reference.crop, "the aligned cloud"), size)
    truth = voxel_means(_inside(reference.points, reference.crop, "the scan"), size)
    distances = compare_clouds(cloud, truth, device=device, progress=progress)
    precision = share_below(distances.to_truth, reference.tau)
    recall = share_below(distances.to_points, reference.tau)
    score = TanksScore(
        scene=reference.name,
        tau=reference.tau,
        precision=precision,
        recall=recall,
        fscore=harmonic_mean(precision, recall),
        points=len(cloud),
        truth_points=len(truth),
        scale=float(np.cbrt(np.linalg.det(matrix[:3, :3]))),
    )
    return score, distances


def align_cameras(world_from_cam: NDArray[np.float64], reference: TanksReference) -> Matrix:
    """The similarity from the cloud's world to the scan, from camera centres."""
    centres = world_from_cam[:, :3, 3]
    if len(centres) > EVERY_FRAME and reference.mapping is not None:
        if reference.mapping.max() >= len(centres):
            raise InputError(
                f"the trajectory has {len(centres)} poses, but the film has at least "
                f"{reference.mapping.max() + 1} frames"
            )
        centres = centres[reference.mapping]
    if len(centres) != len(reference.cameras):
        raise InputError(
            f"the trajectory has {len(centres)} poses, {reference.name} has {len(reference.cameras)} images; "
            "a pose is needed for each image, in their order"
        )
    return align_matches(centres, reference.cameras, max_error=CAMERA_TOLERANCE)


def refine(
    points: Points,
    reference: TanksReference,
    matrix: Matrix,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Matrix:
    """Three rounds of ICP, with smaller voxels and reach each time."""
    tau = reference.tau
    truth = _inside(reference.points, reference.crop, "the scan")
    for voxel, reach in ((tau, 80 * tau), (tau / 2, 20 * tau), (None, 2 * tau)):
        cloud = _inside(transformed(points, matrix), reference.crop, "the aligned cloud")
        a, b = (
            (_every_nth(cloud), _every_nth(truth))
            if voxel is None
            else (voxel_means(cloud, voxel), voxel_means(truth, voxel))
        )
        matrix = icp(a, b, max_distance=reach, iterations=20, device=device, progress=progress) @ matrix
    return matrix


def _inside(points: Points, crop: CropVolume, name: str) -> Points:
    kept = points[crop.contains(points)]
    if len(kept) == 0:
        raise InputError(
            f"{name} has no point in the scene's crop volume; is the trajectory that of the cloud?"
        )
    return kept


def _every_nth(points: Points) -> Points:
    step = round(len(points) / MAX_ICP_POINTS) if len(points) > MAX_ICP_POINTS else 1
    return points[::step]


# ---- upload -----------------------------------------------------------------------------------------------


def pack_upload(
    clouds: dict[str, Path], logs: dict[str, Path], folder: str | Path, group: str = "both"
) -> Sequence[Path]:
    """Put `<Scene>.ply`, `<Scene>.log` and `md5_check.txt` into a folder, as the server's uploader wants."""
    out = Path(folder)
    scenes = sorted(split_scenes(group))
    missing = [name for name in scenes if name not in clouds or name not in logs]
    if missing:
        raise SceneError(f"group '{group}' needs a cloud and a trajectory of {', '.join(missing)} too")
    for name in scenes:
        if len(read_ply(clouds[name])) == 0:
            raise FormatError(clouds[name], "the cloud has no points")
        read_log(logs[name])
    written, sums = [], []
    for name in scenes:
        for source, target in ((clouds[name], out / f"{name}.ply"), (logs[name], out / f"{name}.log")):
            with atomic_path(target) as temporary:
                shutil.copyfile(source, temporary)
            with target.open("rb") as file:
                digest = hashlib.file_digest(file, "md5").digest()
            sums.append(f"{target.name}###{base64.b64encode(digest).decode()}\n")
            written.append(target)
    return [*written, write_text(out / "md5_check.txt", "".join(sums))]
