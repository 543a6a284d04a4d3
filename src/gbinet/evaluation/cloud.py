"""A cloud against the true one: distances in both directions, and scores from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import InputError
from gbinet.evaluation.nearest import Points, nearest_distances, thin
from gbinet.formats.cloud_files import read_cloud
from gbinet.progress import Progress

_CHUNK = 1 << 22  # points checked at a time


def load_points(path: str | Path) -> Points:
    """Positions of a cloud (.ply, .las, .laz, .xyz), checked."""
    return checked(read_cloud(path).xyz.numpy(), str(path))


def checked(points: Points, name: str) -> Points:
    """Return the points; raise an InputError unless they are [N, 3] with N > 0, and all finite."""
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"{name}: points must be [N, 3], got {list(points.shape)}")
    if len(points) == 0:
        raise InputError(f"{name}: the cloud has no points; nothing can be measured")
    bad = 0
    for start in range(0, len(points), _CHUNK):
        bad += int((~np.isfinite(points[start : start + _CHUNK]).all(axis=1)).sum())
    if bad:
        raise InputError(
            f"{name}: {bad:,} of {len(points):,} points are NaN or infinite; "
            "remove them first, they would change the score"
        )
    return points


@dataclass(frozen=True)
class CloudScore:
    """Means and medians are over distances below `max_distance`; shares are over all points."""

    accuracy: float  # mean distance from the cloud to the truth
    completeness: float  # mean distance from the truth to the cloud
    overall: float  # mean of the two
    accuracy_median: float
    completeness_median: float
    precision: dict[float, float]  # threshold -> share of the cloud nearer than this to the truth
    recall: dict[float, float]  # threshold -> share of the truth nearer than this to the cloud
    fscore: dict[float, float]  # threshold -> harmonic mean of the two
    points: int
    truth_points: int


@dataclass(frozen=True)
class CloudDistances:
    """Every point's distance to the other cloud; inf where it is more than the search's limit."""

    points: Points  # [N, 3]
    to_truth: NDArray[np.float64]  # [N]
    truth: Points  # [M, 3]
    to_points: NDArray[np.float64]  # [M]


def compare_clouds(
    points: Points,
    truth: Points,
    *,
    thinning: float | None = None,
    max_distance: float = math.inf,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> CloudDistances:
    """Distances in both directions; `thinning`: spacing to which the cloud is thinned first."""
    points, truth = checked(points, "the cloud"), checked(truth, "the true cloud")
    if thinning is not None:
        points = points[thin(points, thinning, seed=seed, device=device, progress=progress)]
    nearest = partial(nearest_distances, max_distance=max_distance, device=device, progress=progress)
    to_truth = nearest(points, truth, what="cloud to truth")
    return CloudDistances(points, to_truth, truth, nearest(truth, points, what="truth to cloud"))


def score_cloud(
    distances: CloudDistances, thresholds: Sequence[float], max_distance: float = math.inf
) -> CloudScore:
    precision = {t: share_below(distances.to_truth, t) for t in thresholds}
    recall = {t: share_below(distances.to_points, t) for t in thresholds}
    return CloudScore(
        **distance_figures(distances.to_truth, distances.to_points, max_distance),
        precision=precision,
        recall=recall,
        fscore={t: harmonic_mean(precision[t], recall[t]) for t in thresholds},
        points=len(distances.points),
        truth_points=len(distances.truth),
    )


def distance_figures(
    to_truth: NDArray[np.float64],  # [N]
    to_points: NDArray[np.float64],  # [M]
    max_distance: float,
) -> dict[str, float]:
    """Accuracy and completeness, mean and median each, and their overall mean, as fields of a score."""
    accuracy, accuracy_median = mean_and_median(to_truth, max_distance)
    completeness, completeness_median = mean_and_median(to_points, max_distance)
    return {
        "accuracy": accuracy,
        "completeness": completeness,
        "overall": (accuracy + completeness) / 2,
        "accuracy_median": accuracy_median,
        "completeness_median": completeness_median,
    }


def mean_and_median(distances: NDArray[np.float64], max_distance: float = math.inf) -> tuple[float, float]:
    """Mean and median of the distances below max_distance; NaN where there are none."""
    used = distances[distances < max_distance]
    if len(used) == 0:
        return math.nan, math.nan
    return float(used.mean()), float(np.median(used))


def share_below(distances: NDArray[np.float64], threshold: float) -> float:
    return float((distances < threshold).mean()) if len(distances) else math.nan


def harmonic_mean(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


def voxel_means(points: Points, size: float) -> NDArray[np.float64]:
    """The mean of the points of every voxel (as Open3D: the grid starts half a voxel below the minimum)."""
    if not size > 0:
        raise InputError(f"the size of a voxel must be positive, got {size:g}")
    if len(points) == 0:
        return np.zeros((0, 3))
    low = points.min(axis=0).astype(np.float64) - size / 2
    order, starts, counts = cells_of(points, low, size)
    sums = np.stack([np.add.reduceat(points[order, k].astype(np.float64), starts) for k in range(3)], axis=1)
    return np.asarray(sums / counts[:, None])


def cells_of(
    points: Points, low: NDArray[np.float64], size: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sort points by the voxels of a grid that starts at `low`.

    Returns the order of the points [N], where each voxel begins in it [C], and its number of points [C].
    """
    cells = np.floor((points.astype(np.float64) - low) / size)
    if np.abs(cells).max(initial=0) >= 1 << 20:
        extent = float(np.abs(cells).max() * size)
        raise InputError(f"a cloud {extent:g} wide has too many voxels of {size:g}; is its unit right?")
    x, y, z = cells.astype(np.int64).T + (1 << 20)
    voxel = np.asarray((x << 42) | (y << 21) | z)
    order = np.argsort(voxel, kind="stable")
    starts = np.flatnonzero(np.diff(voxel[order], prepend=-1))
    return order, starts, np.diff(starts, append=len(points))
