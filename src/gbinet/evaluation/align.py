"""Similarity transforms between clouds: least squares, RANSAC over matches, ICP."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import InputError
from gbinet.evaluation.nearest import Points, neighbours
from gbinet.progress import Progress

Matrix = NDArray[np.float64]  # [4, 4]

_CONVERGED = 1e-6  # ICP stops when neither fitness nor error changes by more


def transformed(points: Points, matrix: Matrix) -> NDArray[np.float64]:
    """Points [N, 3] after a 4x4 transform."""
    return np.asarray(points.astype(np.float64) @ matrix[:3, :3].T + matrix[:3, 3])


def fit_similarity(source: Points, target: Points) -> Matrix:
    """The scale, rotation and shift that carry source [N, 3] to target [N, 3] with the least squared error.

    Umeyama, "Least-squares estimation of transformation parameters between two point patterns", 1991.
    """
    source, target = source.astype(np.float64), target.astype(np.float64)
    mean_s, mean_t = source.mean(axis=0), target.mean(axis=0)
    s, t = source - mean_s, target - mean_t
    u, singular, vt = np.linalg.svd(t.T @ s / len(s))
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(u) * np.linalg.det(vt)) or 1.0])
    rotation = (u * signs) @ vt
    variance = float((s**2).sum() / len(s))
    scale = float((singular * signs).sum()) / variance if variance > 0 else 1.0
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = mean_t - scale * rotation @ mean_s
    return matrix


def align_matches(
    source: Points,
    target: Points,
    *,
    max_error: float,
    sample: int = 6,
    max_trials: int = 100_000,
    seed: int = 0,
) -> Matrix:
    """A similarity from matched points [N, 3], some of them wrong, by RANSAC.

    The model with the most matches within max_error wins, then the one with the smaller error; it is fitted
    once more to all of those matches. Trials end early when a better sample has become unlikely (1e-6).
    """
    if len(source) != len(target) or len(source) < sample:
        raise InputError(
            f"alignment needs two trajectories of equal length and at least {sample} cameras, "
            f"got {len(source)} and {len(target)}"
        )
    rng = np.random.default_rng(seed)
    best: tuple[int, float] = (0, 0.0)  # number of inliers, minus their summed squared error
    inliers: NDArray[np.bool_] | None = None  # [N], of the best model
    trial, trials = 0, max_trials
    while trial < trials:
        trial += 1
        chosen = rng.choice(len(source), sample, replace=False)
        model = fit_similarity(source[chosen], target[chosen])
        error = np.linalg.norm(transformed(source, model) - target, axis=1)
        good = error < max_error
        quality = (int(good.sum()), -float(np.square(error[good]).sum()))
        if quality > best:
            best, inliers = quality, good
            trials = min(max_trials, _trials_needed(quality[0] / len(source), sample))
    if inliers is None or inliers.sum() < sample:
        raise InputError(
            f"the trajectories do not fit: no similarity brings {sample} cameras within {max_error:g}; "
            "do both list the same images in the same order?"
        )
    return fit_similarity(source[inliers], target[inliers])


def _trials_needed(share: float, sample: int) -> int:
    """Trials after which a sample without a wrong match has been drawn with probability 1 - 1e-6."""
    clean = share**sample
    if clean >= 1:
        return 1
    return math.ceil(math.log(1e-6) / math.log1p(-clean)) if clean > 1e-12 else 1 << 62


def icp(
    source: Points,
    target: Points,
    *,
    max_distance: float,
    iterations: int,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Matrix:
    """Point-to-point ICP with scale: the similarity that carries source onto target."""
    search = neighbours(target, device)
    matrix = np.eye(4)
    quality = (-1.0, -1.0)  # share of points with a partner, root mean square of their distances
    for iteration in range(iterations):
        moved = transformed(source, matrix)
        distance, index = search.nearest(moved, max_distance)
        found = index >= 0
        if found.sum() < 3:
            raise InputError(
                f"alignment failed: {int(found.sum())} points lie within {max_distance:g} of the truth"
            )
        before, quality = quality, (float(found.mean()), float(np.sqrt(np.square(distance[found]).mean())))
        if max(abs(quality[0] - before[0]), abs(quality[1] - before[1])) < _CONVERGED:
            break
        matrix = fit_similarity(moved[found], target[index[found]]) @ matrix
        if progress:
            progress(iteration + 1, iterations, f"ICP within {max_distance:g}")
    return matrix
