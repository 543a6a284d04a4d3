"""Matches of pairs of photos -> tracks of points, and the positions of these points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gbinet.scenes.refine.features import Features
from gbinet.scenes.refine.guided import Array, CameraArrays, Matches

_MIN_ANGLE = np.radians(0.5)  # between two of a point's rays: less says nothing about its depth
_ROUNDS = 4  # of triangulation, each without the worst observations of the one before

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tracks:
    """Observations, ordered by point."""

    point: Ints  # [T] 0, 0, 0, 1, 1, ...
    view: Ints  # [T]
    feature: Ints  # [T]
    pixels: Array  # [T, 2]

    def only(self, kept: NDArray[np.bool_]) -> Tracks:
        """Some of the observations; points are numbered anew."""
        point = np.unique(self.point[kept], return_inverse=True)[1]
        return Tracks(point.astype(np.int64), self.view[kept], self.feature[kept], self.pixels[kept])

    @property
    def count(self) -> int:
        return int(self.point[-1]) + 1 if len(self.point) else 0


def link(matches: Matches, features: Sequence[Features]) -> Tracks:
    """Join matched features into tracks, one per point.

    A view with two features of one point is dropped from that track.
    """
    counts = np.array([len(found.pixels) for found in features])
    starts = np.concatenate([[0], counts.cumsum()])
    if not matches:
        none = np.zeros(0, np.int64)
        return Tracks(none, none, none, np.zeros((0, 2)))
    ends = np.concatenate([m + starts[list(pair)] for pair, m in sorted(matches.items())])  # [M, 2]
    label = _joined(int(starts[-1]), ends)
    used = np.unique(ends)  # features, by view
    view = np.searchsorted(starts, used, side="right") - 1
    _, inverse, occurrences = np.unique(
        label[used] * len(features) + view, return_inverse=True, return_counts=True
    )
    single = occurrences[inverse] == 1  # the only feature of its view in its track
    used, view, point = used[single], view[single], label[used][single]
    order = np.lexsort((view, point))
    used, view, point = used[order], view[order], point[order]
    pixels = np.concatenate([found.pixels for found in features])[used]
    tracks = Tracks(point, view, used - starts[view], pixels)
    return tracks.only(_is_seen_twice(tracks.point))


def _joined(count: int, ends: Ints) -> Ints:
    """[F] number of the first feature of each feature's connected component, where matches are the edges."""
    label = np.arange(count)
    while True:
        before = label.copy()
        least = np.minimum(label[ends[:, 0]], label[ends[:, 1]])
        for side in (0, 1):
            np.minimum.at(label, label[ends[:, side]], least)
            np.minimum.at(label, ends[:, side], least)
        label = label[label]
        if (label == before).all():
            return label


def _is_seen_twice(point: Ints) -> NDArray[np.bool_]:
    """[T] whether the point of each observation has two observations or more."""
    _, inverse, counts = np.unique(point, return_inverse=True, return_counts=True)
    seen_twice: NDArray[np.bool_] = counts[inverse] >= 2
    return seen_twice


def triangulated(tracks: Tracks, cameras: CameraArrays, max_error: Array) -> tuple[Tracks, Array]:
    """Tracks that can be triangulated, and their points [P, 3].

    Observations that are more than max_error[view] px off are left out.
    """
    for _ in range(_ROUNDS):
        if not len(tracks.point):
            break
        points = _nearest_to_rays(tracks, cameras)
        error, depth = reprojected(tracks, cameras, points)
        fits = (depth > 0) & (error <= max_error[tracks.view])
        wide = _widest_angle(tracks, cameras, points) >= _MIN_ANGLE
        if fits.all() and wide.all():
            return tracks, points
        # Drop only the worst observation of a point: the others may fit without it.
        error = np.where(depth > 0, error, np.inf)
        worst = np.zeros(tracks.count)
        np.maximum.at(worst, tracks.point, error)
        dropped = ~fits & (error >= worst[tracks.point])
        kept = ~dropped & wide[tracks.point]
        tracks = tracks.only(kept & _is_kept_twice(tracks.point, kept))
    if not len(tracks.point):
        return tracks, np.zeros((0, 3))
    points = _nearest_to_rays(tracks, cameras)
    error, depth = reprojected(tracks, cameras, points)
    good = np.ones(tracks.count, bool)
    np.logical_and.at(good, tracks.point, (depth > 0) & (error <= max_error[tracks.view]))
    good &= _widest_angle(tracks, cameras, points) >= _MIN_ANGLE
    return tracks.only(good[tracks.point]), points[good]


def _is_kept_twice(point: Ints, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[T] whether two observations or more of the point of each observation are kept."""
    counts = np.bincount(point, kept, minlength=int(point[-1]) + 1)
    kept_twice: NDArray[np.bool_] = counts[point] >= 2
    return kept_twice


def reprojected(tracks: Tracks, cameras: CameraArrays, points: Array) -> tuple[Array, Array]:
    """Reprojection error of every observation in px [T], and the depth of its point in its view [T]."""
    pose = cameras.cam_from_world[tracks.view]  # [T, 4, 4]
    in_camera = np.einsum("tij,tj->ti", pose[:, :3, :3], points[tracks.point]) + pose[:, :3, 3]
    projected = np.einsum("tij,tj->ti", cameras.K[tracks.view], in_camera)  # [T, 3]
    divisor = np.where(np.abs(projected[:, 2:]) < 1e-12, 1e-12, projected[:, 2:])
    return np.linalg.norm(projected[:, :2] / divisor - tracks.pixels, axis=1), in_camera[:, 2]


def _rays(tracks: Tracks, cameras: CameraArrays) -> Array:
    """[T, 3] directions in the world, of length 1."""
    inverse = np.linalg.inv(cameras.K)[tracks.view]
    homogeneous = np.concatenate([tracks.pixels, np.ones((len(tracks.pixels), 1))], 1)
    in_camera = np.einsum("tij,tj->ti", inverse, homogeneous)
    rays = np.einsum("tji,tj->ti", cameras.cam_from_world[tracks.view][:, :3, :3], in_camera)
    unit: Array = rays / np.linalg.norm(rays, axis=1, keepdims=True)
    return unit


def _nearest_to_rays(tracks: Tracks, cameras: CameraArrays) -> Array:
    """[P, 3] points with the least squared angles to their rays.

    The squared distance to a ray is weighted by one over that to its camera, from the round before.
    """
    rays, centres = _rays(tracks, cameras), cameras.centres[tracks.view]
    off_ray = np.eye(3) - rays[:, :, None] * rays[:, None, :]  # [T, 3, 3]
    weight = np.ones(len(rays))
    points = np.zeros((tracks.count, 3))
    for _ in range(2):
        parts = off_ray * weight[:, None, None]
        matrix = np.zeros((tracks.count, 3, 3))
        right = np.zeros((tracks.count, 3))
        np.add.at(matrix, tracks.point, parts)
        np.add.at(right, tracks.point, np.einsum("tij,tj->ti", parts, centres))
        regulariser = 1e-12 * np.trace(matrix, axis1=1, axis2=2)[:, None, None] * np.eye(3)
        points = np.linalg.solve(matrix + regulariser, right[..., None])[..., 0]
        weight = 1 / ((points[tracks.point] - centres) ** 2).sum(1).clip(1e-24)
        weight /= weight.max()
    return points


def _widest_angle(tracks: Tracks, cameras: CameraArrays, points: Array) -> Array:
    """[P] estimate of the largest angle between two rays of a point: twice the largest one to their mean."""
    rays = points[tracks.point] - cameras.centres[tracks.view]
    rays /= np.linalg.norm(rays, axis=1, keepdims=True).clip(1e-24)
    middle = np.zeros((tracks.count, 3))
    np.add.at(middle, tracks.point, rays)
    middle /= np.linalg.norm(middle, axis=1, keepdims=True).clip(1e-24)
    angle = 2 * np.arcsin((np.linalg.norm(rays - middle[tracks.point], axis=1) / 2).clip(0, 1))
    widest = np.zeros(tracks.count)
    np.maximum.at(widest, tracks.point, 2 * angle)
    return widest
