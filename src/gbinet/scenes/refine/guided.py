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
Likeness = NDArray[np.float32]

LEAST = 12  # matches that make a pair
_RATIO = 0.8  # how much closer the best candidate is than the second best
_FARTHEST = 0.7  # distance of two descriptors of length 1
_SOUND = 0.5  # share of a pair's matches that one epipolar geometry must explain
_OFF = 2.0  # px that these may be off
_SEED = 0
_APART = 1e-3  # of the largest distance between two cameras of a pair: nearer ones have no epipolar lines
_AT_ONCE = 1 << 22  # pairs of features


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
        """F [3, 3]: pixel b @ F @ pixel a = 0 for two pictures of one point."""
        pose = self.cam_from_world[b] @ np.linalg.inv(self.cam_from_world[a])
        x, y, z = pose[:3, 3] / max(float(np.linalg.norm(pose[:3, 3])), 1e-300)
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        found: Array = np.linalg.inv(self.K[b]).T @ cross @ pose[:3, :3] @ np.linalg.inv(self.K[a])
        return found


def epipolar_errors(cameras: CameraArrays, pair: Pair, first: Array, second: Array) -> Array:
    """Pixels between matches [M, 2] and their epipolar lines, mean of both photos. [M]"""
    F = cameras.fundamental(*pair)
    a, b = _homogeneous(first), _homogeneous(second)
    in_b, in_a = a @ F.T, b @ F  # lines [M, 3]
    product = np.abs((b * in_b).sum(1))
    found: Array = product * (_inverse_norm(in_a) + _inverse_norm(in_b)) / 2
    return found


def poses_of(rotation: Array, centres: Array) -> Array:
    """[V, 4, 4] cam_from_world of cameras that are turned so [V, 3, 3] and stand there [V, 3]."""
    poses = np.tile(np.eye(4), (len(rotation), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = rotation, -np.einsum("vij,vj->vi", rotation, centres)
    return poses


def pair_of(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def pairs_of(sources: Sequence[Sequence[int]]) -> list[Pair]:
    """Every view with its source views."""
    return sorted({pair_of(a, b) for a, others in enumerate(sources) for b in others if a != b})


def apart(cameras: CameraArrays, pairs: Iterable[Pair]) -> list[Pair]:
    """Pairs that were taken from two places. All matches of others fit, however wrong their cameras are."""
    known, centres = sorted(pairs), cameras.centres
    between = [float(np.linalg.norm(centres[a] - centres[b])) for a, b in known]
    least = _APART * max(between, default=0.0)
    return [pair for pair, length in zip(known, between, strict=True) if length > least]


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

    def of(pair: Pair) -> NDArray[np.int64]:
        a, b = pair
        matches = _near_lines(features[a], features[b], cameras.fundamental(a, b), tolerance[a], tolerance[b])
        return matches[_consistent(pycolmap, features, cameras, pair, matches)]

    found: Matches = {}
    with ThreadPoolExecutor(usable_cores(), "matches") as pool:
        for number, (pair, matches) in enumerate(zip(pairs, pool.map(of, pairs), strict=True)):
            if len(matches) >= LEAST:
                found[pair] = matches
            if progress:
                progress(number + 1, len(pairs), what)
    return found


def _near_lines(a: Features, b: Features, F: Array, most_a: float, most_b: float) -> NDArray[np.int64]:
    """[M, 2] features that are each other's best among those near their lines, and clearly so."""
    if len(a.pixels) < 2 or len(b.pixels) < 2:
        return np.zeros((0, 2), np.int64)
    points_a, points_b = _homogeneous(a.pixels), _homogeneous(b.pixels)
    in_b, in_a = points_a @ F.T, points_b @ F  # lines
    lines = (in_b * _inverse_norm(in_b)[:, None]).astype(np.float32)
    share = (_inverse_norm(in_a) / most_a).astype(np.float32)  # [B]
    norm = (1 / _inverse_norm(in_b)).astype(np.float32)  # [A]
    others, of_b = points_b.T.astype(np.float32), b.descriptors.astype(np.float32).T
    rows = max(1, _AT_ONCE // len(b.pixels))
    best, clear, score = [], [], []
    top = np.full((2, len(b.pixels)), -1.0, np.float32)  # best and second best of each feature of b
    top_at = np.zeros(len(b.pixels), np.int64)
    for start in range(0, len(a.pixels), rows):
        block = slice(start, start + rows)
        off = np.abs(lines[block] @ others)  # [R, B] px in photo b
        near = (off <= most_b) & (off * norm[block, None] * share <= 1)
        likeness = a.descriptors[block].astype(np.float32) @ of_b  # [R, B]
        likeness[~near] = -1
        at, first, second = _two_best(np.ascontiguousarray(likeness.T))
        better = first > top[0]
        top_at = np.where(better, start + at, top_at)
        top = np.stack(
            [np.maximum(top[0], first), np.maximum(np.minimum(top[0], first), np.maximum(top[1], second))]
        )
        at, first, second = _two_best(likeness)
        best.append(at)
        clear.append(_is_clear(first, second))
        score.append(first)
    partner = np.concatenate(best)  # [A]
    good = np.concatenate(clear) & _is_clear(top[0], top[1])[partner]
    good &= (top_at[partner] == np.arange(len(partner))) & (np.concatenate(score) > 1 - _FARTHEST**2 / 2)
    chosen = np.flatnonzero(good)
    return np.stack([chosen, partner[chosen]], 1)


def _two_best(likeness: Likeness) -> tuple[NDArray[np.int64], Likeness, Likeness]:
    """Of each row: where the largest is, it, and the second largest. Rows lose their largest."""
    at, rows = likeness.argmax(1), np.arange(len(likeness))
    best = likeness[rows, at]
    likeness[rows, at] = -1
    return at, best, likeness.max(1)


def _is_clear(best: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Lowe's test, on distances of descriptors of length 1."""
    clear: NDArray[np.bool_] = (best > 0) & (1 - best.clip(-1, 1) < _RATIO**2 * (1 - second.clip(-1, 1)))
    return clear


def _consistent(
    pycolmap: Any, features: Sequence[Features], cameras: CameraArrays, pair: Pair, matches: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """[M] those that belong to one motion between the two photos; none where most do not."""
    none = np.zeros(len(matches), bool)
    if len(matches) < LEAST:
        return none
    lenses = [_lens(pycolmap, cameras, view) for view in pair]
    options = pycolmap.RANSACOptions()
    options.max_error, options.random_seed = _OFF * max(features[view].unit for view in pair), _SEED
    places = [features[view].pixels[matches[:, side]] for side, view in enumerate(pair)]
    found = pycolmap.estimate_essential_matrix(*places, *lenses, options)
    if found is None or found["num_inliers"] < max(LEAST, _SOUND * len(matches)):
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
    found: Array = 1 / np.hypot(lines[:, 0], lines[:, 1]).clip(1e-12)
    return found
