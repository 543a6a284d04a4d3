"""Matches of pairs -> tracks of points, and where these points are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gbinet.scenes.refine.features import Features
from gbinet.scenes.refine.guided import Array, CameraArrays, Matches

_LEAST_ANGLE = np.radians(0.5)  # between two of a point's rays: less says nothing about its depth
_ROUNDS = 4  # of triangulation, each without what is far off in the one before

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Tracks:
    """Observations, ordered by point."""

    point: Whole  # [T] 0, 0, 0, 1, 1, ...
    view: Whole  # [T]
    feature: Whole  # [T]
    pixels: Array  # [T, 2]

    def only(self, kept: NDArray[np.bool_]) -> Tracks:
        """Some of the observations; points are numbered anew."""
        point = np.unique(self.point[kept], return_inverse=True)[1]
        return Tracks(point.astype(np.int64), self.view[kept], self.feature[kept], self.pixels[kept])

    @property
    def count(self) -> int:
        return int(self.point[-1]) + 1 if len(self.point) else 0


def link(matches: Matches, features: Sequence[Features]) -> Tracks:
    """Features that matches join are one point.

    A view with two features of one point is dropped from that track.
    """
    counts = np.array([len(one.pixels) for one in features])
    starts = np.concatenate([[0], counts.cumsum()])
    if not matches:
        none = np.zeros(0, np.int64)
        return Tracks(none, none, none, np.zeros((0, 2)))
    ends = np.concatenate([m + starts[list(pair)] for pair, m in sorted(matches.items())])  # [M, 2]
    label = _joined(int(starts[-1]), ends)
    used = np.unique(ends)  # features, by view
    view = np.searchsorted(starts, used, side="right") - 1
    keys = label[used] * len(features) + view
    once = np.unique(keys, return_inverse=True, return_counts=True)
    alone = once[2][once[1]] == 1
    used, view, owner = used[alone], view[alone], label[used][alone]
    order = np.lexsort((view, owner))
    used, view, owner = used[order], view[order], owner[order]
    pixels = np.concatenate([one.pixels for one in features])[used]
    every = Tracks(owner, view, used - starts[view], pixels)
    return every.only(_of_several(every.point))


def _joined(count: int, ends: Whole) -> Whole:
    """[F] the smallest feature that each is joined with, over however many matches."""
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


def _of_several(point: Whole) -> NDArray[np.bool_]:
    """[T] whether a point has two observations or more."""
    _, place, counts = np.unique(point, return_inverse=True, return_counts=True)
    several: NDArray[np.bool_] = counts[place] >= 2
    return several


def triangulated(tracks: Tracks, cameras: CameraArrays, most: Array) -> tuple[Tracks, Array]:
    """Tracks that are points, and the points [P, 3]; observations over most[view] px off are left out."""
    for _ in range(_ROUNDS):
        if not len(tracks.point):
            break
        points = _nearest_to_rays(tracks, cameras)
        error, depth = reprojected(tracks, cameras, points)
        fits = (depth > 0) & (error <= most[tracks.view])
        wide = _widest_angle(tracks, cameras, points) >= _LEAST_ANGLE
        if fits.all() and wide.all():
            return tracks, points
        # The worst only: what else looks wrong may be right without it.
        bad = np.where(depth > 0, error, np.inf)
        worst = np.zeros(tracks.count)
        np.maximum.at(worst, tracks.point, bad)
        out = ~fits & (bad >= worst[tracks.point])
        kept = ~out & wide[tracks.point]
        tracks = tracks.only(kept & _still_several(tracks.point, kept))
    if not len(tracks.point):
        return tracks, np.zeros((0, 3))
    points = _nearest_to_rays(tracks, cameras)
    error, depth = reprojected(tracks, cameras, points)
    good = np.ones(tracks.count, bool)
    np.logical_and.at(good, tracks.point, (depth > 0) & (error <= most[tracks.view]))
    good &= _widest_angle(tracks, cameras, points) >= _LEAST_ANGLE
    return tracks.only(good[tracks.point]), points[good]


def _still_several(point: Whole, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    counts = np.bincount(point, kept, minlength=int(point[-1]) + 1)
    several: NDArray[np.bool_] = counts[point] >= 2
    return several


def reprojected(tracks: Tracks, cameras: CameraArrays, points: Array) -> tuple[Array, Array]:
    """Pixels between every observation and its point [T], and the point's depth there [T]."""
    pose = cameras.cam_from_world[tracks.view]  # [T, 4, 4]
    local = np.einsum("tij,tj->ti", pose[:, :3, :3], points[tracks.point]) + pose[:, :3, 3]
    seen = np.einsum("tij,tj->ti", cameras.K[tracks.view], local)
    depth = local[:, 2]
    safe = np.where(np.abs(seen[:, 2:]) < 1e-12, 1e-12, seen[:, 2:])
    return np.linalg.norm(seen[:, :2] / safe - tracks.pixels, axis=1), depth


def _rays(tracks: Tracks, cameras: CameraArrays) -> Array:
    """[T, 3] directions in the world, of length 1."""
    inverse = np.linalg.inv(cameras.K)[tracks.view]
    whole = np.concatenate([tracks.pixels, np.ones((len(tracks.pixels), 1))], 1)
    local = np.einsum("tij,tj->ti", inverse, whole)
    rays = np.einsum("tji,tj->ti", cameras.cam_from_world[tracks.view][:, :3, :3], local)
    found: Array = rays / np.linalg.norm(rays, axis=1, keepdims=True)
    return found


def _nearest_to_rays(tracks: Tracks, cameras: CameraArrays) -> Array:
    """[P, 3] least squares of the angles to the rays: squared distances over those of the cameras."""
    rays, centres = _rays(tracks, cameras), cameras.centres[tracks.view]
    across = np.eye(3) - rays[:, :, None] * rays[:, None, :]  # [T, 3, 3]
    weight = np.ones(len(rays))
    points = np.zeros((tracks.count, 3))
    for _ in range(2):
        parts = across * weight[:, None, None]
        matrix = np.zeros((tracks.count, 3, 3))
        right = np.zeros((tracks.count, 3))
        np.add.at(matrix, tracks.point, parts)
        np.add.at(right, tracks.point, np.einsum("tij,tj->ti", parts, centres))
        steady = 1e-12 * np.trace(matrix, axis1=1, axis2=2)[:, None, None] * np.eye(3)
        points = np.linalg.solve(matrix + steady, right[..., None])[..., 0]
        weight = 1 / ((points[tracks.point] - centres) ** 2).sum(1).clip(1e-24)
        weight /= weight.max()
    return points


def _widest_angle(tracks: Tracks, cameras: CameraArrays, points: Array) -> Array:
    """[P] about the largest angle between two rays of a point: twice the largest to the middle of all."""
    rays = points[tracks.point] - cameras.centres[tracks.view]
    rays /= np.linalg.norm(rays, axis=1, keepdims=True).clip(1e-24)
    middle = np.zeros((tracks.count, 3))
    np.add.at(middle, tracks.point, rays)
    middle /= np.linalg.norm(middle, axis=1, keepdims=True).clip(1e-24)
    angle = 2 * np.arcsin((np.linalg.norm(rays - middle[tracks.point], axis=1) / 2).clip(0, 1))
    widest = np.zeros(tracks.count)
    np.maximum.at(widest, tracks.point, 2 * angle)
    return widest
