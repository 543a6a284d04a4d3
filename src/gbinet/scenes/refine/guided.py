"""Matches between photos whose cameras are nearly right: a feature is looked for near its epipolar line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.cores import usable_cores
from gbinet.progress import Progress
from gbinet.scenes.refine.features import Features

Pair = tuple[int, int]  # numbers of two views, the smaller one first
Matches = dict[Pair, NDArray[np.int64]]  # [M, 2] features of both views
Array = NDArray[np.float64]
Similarities = NDArray[np.float32]  # cosines of descriptors, -1 = ruled out

MIN_MATCHES = 12  # of a pair
_RATIO = 0.8  # of the distance of the second best candidate, at which the best one is clear (Lowe)
_MAX_DISTANCE = 0.7  # of two descriptors of length 1
_MIN_INLIERS = 0.5  # share of a pair's matches that one epipolar geometry must explain
_MAX_ERROR = 2.0  # px of these
_SEED = 0
_MIN_BASELINE = 1e-3  # of the largest one of a pair: cameras nearer to each other have no epipolar lines
_PAIRS_AT_ONCE = 1 << 22  # pairs of features


@dataclass(frozen=True)
class CameraArrays:
    """All cameras of a scene."""

    K: Array  # [V, 3, 3]
    cam_from_world: Array  # [V, 4, 4]
    sizes: tuple[tuple[int, int], ...]  # width, height

    @property
    def centres(self) -> Array:
        rotation, shift = self.cam_from_world[:, :3, :3], self.cam_from_world[:, :3, 3]
        centres: Array = -np.einsum("vji,vj->vi", rotation, shift)
        return centres

    def fundamental(self, a: int, b: int) -> Array:
        """F [3, 3]: b @ F @ a = 0 for the homogeneous pixels of one point in views a and b."""
        pose = self.cam_from_world[b] @ np.linalg.inv(self.cam_from_world[a])
        x, y, z = pose[:3, 3] / max(float(np.linalg.norm(pose[:3, 3])), 1e-300)
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        F: Array = np.linalg.inv(self.K[b]).T @ cross @ pose[:3, :3] @ np.linalg.inv(self.K[a])
        return F


def epipolar_errors(cameras: CameraArrays, pair: Pair, first: Array, second: Array) -> Array:
    """Distances [M] of matches [M, 2] from their epipolar lines: px, mean over the two photos."""
    F = cameras.fundamental(*pair)
    a, b = _homogeneous(first), _homogeneous(second)
    lines_b, lines_a = a @ F.T, b @ F  # [M, 3]
    product = np.abs((b * lines_b).sum(1))
    errors: Array = product * (_inverse_norm(lines_a) + _inverse_norm(lines_b)) / 2
    return errors


def poses_of(rotation: Array, centres: Array) -> Array:
    """[V, 4, 4] cam_from_world from its rotations [V, 3, 3] and the centres of the cameras [V, 3]."""
    poses = np.tile(np.eye(4), (len(rotation), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = rotation, -np.einsum("vij,vj->vi", rotation, centres)
    return poses


def pair_of(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def pairs_of(sources: Sequence[Sequence[int]]) -> list[Pair]:
    """Pairs of each view with its source views, each pair once."""
    return sorted({pair_of(a, b) for a, others in enumerate(sources) for b in others if a != b})


def with_baseline(cameras: CameraArrays, pairs: Iterable[Pair]) -> list[Pair]:
    """Pairs of photos taken from two places. All matches of others fit, however wrong their cameras are."""
    ordered, centres = sorted(pairs), cameras.centres
    baselines = [float(np.linalg.norm(centres[a] - centres[b])) for a, b in ordered]
    limit = _MIN_BASELINE * max(baselines, default=0.0)
    return [pair for pair, baseline in zip(ordered, baselines, strict=True) if baseline > limit]


def find_matches(
    pycolmap: Any,
    features: Sequence[Features],
    cameras: CameraArrays,
    pairs: Sequence[Pair],
    tolerance: Array,  # [V] px of each view's photo, off the epipolar line
    progress: Progress | None,
    what: str,
) -> Matches:
    """Matches that one epipolar geometry near the known one explains, pair by pair."""

    def match(pair: Pair) -> NDArray[np.int64]:
        a, b = pair
        F = cameras.fundamental(a, b)
        matches = _match_near_lines(features[a], features[b], F, tolerance[a], tolerance[b])
        return matches[_inliers(pycolmap, features, cameras, pair, matches)]

    found: Matches = {}
    with ThreadPoolExecutor(usable_cores(), "matches") as pool:
        for number, (pair, matches) in enumerate(zip(pairs, pool.map(match, pairs), strict=True)):
            if len(matches) >= MIN_MATCHES:
                found[pair] = matches
            if progress:
                progress(number + 1, len(pairs), what)
    return found


def _match_near_lines(
    a: Features, b: Features, F: Array, tolerance_a: float, tolerance_b: float
) -> NDArray[np.int64]:
    """[M, 2] features that are each other's clear best match among those near their epipolar lines."""
    if len(a.pixels) < 2 or len(b.pixels) < 2:
        return np.zeros((0, 2), np.int64)
    points_a, points_b = _homogeneous(a.pixels), _homogeneous(b.pixels)
    lines_b, lines_a = points_a @ F.T, points_b @ F  # [A, 3], [B, 3]
    unit_lines_b = (lines_b * _inverse_norm(lines_b)[:, None]).astype(np.float32)
    # A distance in photo b times the norm of the line there times this: the share of photo a's tolerance.
    share_a = (_inverse_norm(lines_a) / tolerance_a).astype(np.float32)  # [B]
    norm_b = (1 / _inverse_norm(lines_b)).astype(np.float32)  # [A]
    pixels_b, descriptors_b = points_b.T.astype(np.float32), b.descriptors.astype(np.float32).T
    rows = max(1, _PAIRS_AT_ONCE // len(b.pixels))
    parts = []  # of a, some features at a time: best partner in b, whether it is clear, its similarity
    top = np.full((2, len(b.pixels)), -1.0, np.float32)  # best and second best similarity of each of b
    top_at = np.zeros(len(b.pixels), np.int64)  # [B] best partner in a
    for start in range(0, len(a.pixels), rows):
        block = slice(start, start + rows)
        distance = np.abs(unit_lines_b[block] @ pixels_b)  # [R, B] px in photo b
        near = (distance <= tolerance_b) & (distance * norm_b[block, None] * share_a <= 1)
        similarity = a.descriptors[block].astype(np.float32) @ descriptors_b  # [R, B]
        similarity[~near] = -1
        at, first, second = _two_best(np.ascontiguousarray(similarity.T))
        better = first > top[0]
        top_at = np.where(better, start + at, top_at)
        top = np.stack(
            [np.maximum(top[0], first), np.maximum(np.minimum(top[0], first), np.maximum(top[1], second))]
        )
        at, first, second = _two_best(similarity)
        parts.append((at, _is_clear(first, second), first))
    partner, clear, best = (np.concatenate(column) for column in zip(*parts, strict=True))  # [A] each
    good = clear & _is_clear(top[0], top[1])[partner]
    good &= (top_at[partner] == np.arange(len(partner))) & (best > 1 - _MAX_DISTANCE**2 / 2)
    chosen = np.flatnonzero(good)
    return np.stack([chosen, partner[chosen]], 1)


def _two_best(similarity: Similarities) -> tuple[NDArray[np.int64], Similarities, Similarities]:
    """Of each row: the column of the largest, the largest and the second largest. Overwrites the largest."""
    at, rows = similarity.argmax(1), np.arange(len(similarity))
    best = similarity[rows, at]
    similarity[rows, at] = -1
    return at, best, similarity.max(1)


def _is_clear(best: Similarities, second: Similarities) -> NDArray[np.bool_]:
    """Lowe's test, on distances of descriptors of length 1."""
    clear: NDArray[np.bool_] = (best > 0) & (1 - best.clip(-1, 1) < _RATIO**2 * (1 - second.clip(-1, 1)))
    return clear


def _inliers(
    pycolmap: Any, features: Sequence[Features], cameras: CameraArrays, pair: Pair, matches: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """[M] matches that fit one essential matrix; none where too few do."""
    none = np.zeros(len(matches), bool)
    if len(matches) < MIN_MATCHES:
        return none
    lenses = [_lens(pycolmap, cameras, view) for view in pair]
    options = pycolmap.RANSACOptions()
    options.max_error, options.random_seed = _MAX_ERROR * max(features[view].unit for view in pair), _SEED
    pixels = [features[view].pixels[matches[:, side]] for side, view in enumerate(pair)]
    found = pycolmap.estimate_essential_matrix(*pixels, *lenses, options)
    if found is None or found["num_inliers"] < max(MIN_MATCHES, _MIN_INLIERS * len(matches)):
        return none
    return np.asarray(found["inlier_mask"], bool)


def _lens(pycolmap: Any, cameras: CameraArrays, view: int) -> Any:
    (width, height), K = cameras.sizes[view], cameras.K[view]
    params = [K[0, 0], K[1, 1], K[0, 2], K[1, 2]]
    return pycolmap.Camera(model="PINHOLE", width=width, height=height, params=params)


def _homogeneous(pixels: Array) -> Array:
    return np.concatenate([pixels, np.ones((len(pixels), 1))], 1)


def _inverse_norm(lines: Array) -> Array:
    """[M] one over the length of each line's normal."""
    inverse: Array = 1 / np.hypot(lines[:, 0], lines[:, 1]).clip(1e-12)
    return inverse
