"""Cameras that are nearly right -> cameras that fit the photos, in the same frame and scale.

Features are matched near the epipolar lines of the given cameras, joined to tracks and triangulated; a bundle
adjustment moves the cameras, within what their error makes likely. Some tracks are held out: they measure
whether the new cameras are better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.progress import Progress
from gbinet.scene import Scene, SparsePoints
from gbinet.scenes.refine.adjust import Sigmas, adjust, rotation_vectors
from gbinet.scenes.refine.features import Features, find_features
from gbinet.scenes.refine.guided import (
    Array,
    CameraArrays,
    Matches,
    epipolar_errors,
    find_matches,
    pair_of,
    pairs_of,
    poses_of,
    with_baseline,
)
from gbinet.scenes.refine.outcome import OFF, CameraCheck, Refinement
from gbinet.scenes.refine.tracks import Tracks, link, reprojected, triangulated
from gbinet.scenes.sfm.colmap import quiet

_SEARCH_DISTANCE = 0.03  # of a photo's longer side: how far off its epipolar line a feature is looked for
_HELD_OUT_EVERY = 5  # every 5th track is held out to check the result
_MIN_MATCHES = 40  # with which cameras can be judged
_MIN_POINTS = 12  # that a view must see to be refined
_MIN_VIEWS = 3  # two photos say nothing about how far apart they were taken
_ROUNDS = 4  # of triangulation and adjustment
_MAX_REMAINING = 0.8  # share of the distance from the lines that may be left: less gain is not worth a change
_NOISE = 1.05  # standard deviation of a pixel over the median distance of right matches from their lines
_MIN_DISTANCE = 1e-6  # px: exact matches, which only synthetic scenes have, leave cameras some freedom too
_MIN_SIGMA = 0.2  # px: no feature is more certain
_OUTLIER, _MIN_OUTLIER = 6.0, 2.0  # times that distance, and px: a wrong match
# Of that distance with the given cameras, the share that the rotation of one camera explains, and its shift.
# With 0.7, cameras of a headset follow their few matches too far: fewer points then have the measured depth.
_POSE_SHARE = 0.4
_CHECKED_PAIRS = 8  # of a quick check


@dataclass(frozen=True)
class Refined:
    """The result of a refinement."""

    cameras: CameraArrays
    outcome: Refinement
    points: SparsePoints | None  # None where the given cameras were kept


def refine(scene: Scene, progress: Progress | None = None) -> Refined:
    """Refine the cameras of a scene; where that is not possible or no gain, keep them and say why."""
    began = time.perf_counter()
    with quiet() as pycolmap:
        result = _refine(pycolmap, scene, progress)
    return replace(result, outcome=replace(result.outcome, seconds=round(time.perf_counter() - began, 3)))


def check_cameras(scene: Scene, progress: Progress | None = None) -> CameraCheck:
    """How far matches lie off their epipolar lines, for a few pairs of neighbours."""
    given = cameras_of(scene)
    comparable = set(with_baseline(given, pairs_of([view.best_sources() for view in scene.views])))
    best = []  # pair of each view with its best comparable source
    for index, view in enumerate(scene.views):
        candidates = [pair_of(index, source) for source in view.best_sources()]
        best += [pair for pair in candidates if pair in comparable][:1]
    pairs = sorted(set(best[:: max(1, len(best) // _CHECKED_PAIRS)][:_CHECKED_PAIRS]))
    views = sorted({view for pair in pairs for view in pair})
    number = {view: position for position, view in enumerate(views)}
    cameras = _subset(given, views)
    with quiet() as pycolmap:
        features = find_features(pycolmap, [scene.views[view] for view in views], progress)
        renumbered = [(number[a], number[b]) for a, b in pairs]
        reach = _search_distances(cameras)
        matches = find_matches(pycolmap, features, cameras, renumbered, reach, progress, "comparing photos")
    distances = _line_distances(matches, features, cameras)
    off = float(np.median(distances)) if len(distances) >= _MIN_MATCHES else None
    return CameraCheck(len(matches), len(distances), off)


def cameras_of(scene: Scene) -> CameraArrays:
    views = scene.views
    return CameraArrays(
        np.stack([view.camera.K.double().numpy() for view in views]),
        np.stack([view.camera.cam_from_world.double().numpy() for view in views]),
        tuple((view.camera.width, view.camera.height) for view in views),
    )


def _centred(cameras: CameraArrays) -> tuple[CameraArrays, Array]:
    """The cameras in a frame whose origin is the mean of their centres, and that origin [3].

    Their rotations are made exact: the rounding of numbers in files is metres in map coordinates.
    """
    centres = np.linalg.inv(cameras.cam_from_world)[:, :3, 3]
    origin: Array = centres.mean(0)
    left, _, right = np.linalg.svd(cameras.cam_from_world[:, :3, :3])
    return replace(cameras, cam_from_world=poses_of(left @ right, centres - origin)), origin


def _refine(pycolmap: object, scene: Scene, progress: Progress | None) -> Refined:
    original, count = cameras_of(scene), len(scene.views)
    outcome = Refinement(count)
    if count < _MIN_VIEWS:
        return _kept(original, outcome, f"{_MIN_VIEWS} views are needed to refine them, there are {count}")
    given, origin = _centred(original)
    pairs = pairs_of([[source.index for source in view.sources] for view in scene.views])
    features = find_features(pycolmap, scene.views, progress)
    reach = _search_distances(given)
    matches = find_matches(pycolmap, features, given, pairs, reach, progress, "comparing photos")
    tracks = link(matches, features)
    held_out = tracks.point % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1  # [T]
    matches_apart = {pair: matches[pair] for pair in with_baseline(given, matches)}
    if matches and not matches_apart:
        return _kept(original, outcome, "all photos that share features were taken from one place")
    test_matches = _matches_of(matches_apart, features, tracks, held_out)
    before = _line_distances(test_matches, features, given)
    outcome = replace(outcome, pairs=len(matches))
    if len(before) < _MIN_MATCHES:
        few = len(_line_distances(matches_apart, features, given))
        return _kept(original, outcome, f"the photos share too few features ({few:,} matches)")
    used_matches = _matches_of(matches_apart, features, tracks, ~held_out)
    distances = partial(_line_distances, used_matches, features)
    units = np.array([found.unit for found in features])
    refined, tracks, points = _optimise(given, tracks.only(~held_out), distances, units, progress)
    seen = np.bincount(tracks.view, minlength=count) >= _MIN_POINTS  # [V]
    if int(seen.sum()) < _MIN_VIEWS:
        reason = f"only {int(seen.sum())} views share {_MIN_POINTS} points or more with others"
        return _kept(original, outcome, reason)
    poses = np.where(seen[:, None, None], refined.cam_from_world, given.cam_from_world)
    refined = replace(refined, cam_from_world=poses)
    median_before = round(float(np.median(before)), 4)
    median_after = round(float(np.median(_line_distances(test_matches, features, refined))), 4)
    outcome = replace(outcome, before=median_before, after=median_after, points=len(points))
    if median_after > _MAX_REMAINING * median_before:
        return _kept(original, outcome, _no_better(median_before, median_after))
    poses = poses_of(refined.cam_from_world[:, :3, :3], refined.centres + origin)
    poses = np.where(seen[:, None, None], poses, original.cam_from_world)
    outcome = _with_changes(outcome, scene, given, refined, seen)
    cameras = replace(original, cam_from_world=poses)
    return Refined(cameras, outcome, _sparse_points(tracks, points + origin))


def _no_better(before: float, after: float) -> str:
    lie = f"matches lie {before:.2f} px off their epipolar lines in the median"
    if before <= OFF:
        return f"they fit the photos as well as refined ones: {lie}"
    return (
        f"none were found that fit clearly better: {lie}, {after:.2f} px with the best ones; focal length or "
        "lens distortion may be wrong, or the cameras too far off"
    )


def _kept(given: CameraArrays, outcome: Refinement, reason: str) -> Refined:
    return Refined(given, replace(outcome, kept_because=reason), None)


def _optimise(
    given: CameraArrays,
    all_tracks: Tracks,
    line_distances: Callable[[CameraArrays], Array],  # of matches from their epipolar lines, px
    units: Array,  # [V] px of a photo for one of these
    progress: Progress | None,
) -> tuple[CameraArrays, Tracks, Array]:
    """Triangulate and adjust in turn, each time with the cameras of the round before.

    Returns cameras, the tracks that became points, and the points [P, 3].
    """
    cameras, tracks, points = given, all_tracks, np.zeros((0, 3))
    noise = first_noise = max(float(np.median(line_distances(given))), _MIN_DISTANCE)
    angle = _POSE_SHARE * first_noise * float(np.median(units)) / float(np.median(given.K[:, 0, 0]))
    for number in range(_ROUNDS):
        if progress:
            progress(number, _ROUNDS, "adjusting cameras")
        tracks, points = triangulated(all_tracks, cameras, np.maximum(_OUTLIER * noise, _MIN_OUTLIER) * units)
        if not tracks.count:
            return given, tracks, points
        depth = float(np.median(reprojected(tracks, cameras, points)[1]))
        pixel = max(_MIN_SIGMA, _NOISE * noise) * float(np.median(units))
        cameras, points = adjust(given, cameras, tracks, points, Sigmas(pixel, angle, angle * depth))
        noise = float(np.median(line_distances(cameras)))
    if progress:
        progress(_ROUNDS, _ROUNDS, "adjusting cameras")
    return cameras, tracks, points


def _search_distances(cameras: CameraArrays) -> Array:
    """[V] px: how far off its epipolar line a feature is looked for in each photo."""
    return _SEARCH_DISTANCE * np.array([max(size) for size in cameras.sizes])


def _matches_of(
    matches: Matches, features: Sequence[Features], tracks: Tracks, chosen: NDArray[np.bool_]
) -> Matches:
    """Matches of which both ends belong to the chosen observations [T]."""
    taken = [np.zeros(len(found.pixels), bool) for found in features]
    for view in range(len(features)):
        taken[view][tracks.feature[chosen & (tracks.view == view)]] = True
    return {(a, b): m[taken[a][m[:, 0]] & taken[b][m[:, 1]]] for (a, b), m in matches.items()}


def _line_distances(matches: Matches, features: Sequence[Features], cameras: CameraArrays) -> Array:
    """[M] distances of all matches from their lines, in pixels of the copies that features are found in."""
    parts = [np.zeros(0)]
    for (a, b), m in sorted(matches.items()):
        errors = epipolar_errors(cameras, (a, b), features[a].pixels[m[:, 0]], features[b].pixels[m[:, 1]])
        parts.append(errors / max(features[a].unit, features[b].unit))
    return np.concatenate(parts)


def _with_changes(
    outcome: Refinement,
    scene: Scene,
    given: CameraArrays,
    refined: CameraArrays,
    seen: NDArray[np.bool_],  # [V] whether a view was refined
) -> Refinement:
    """The outcome with which cameras were refined, and how far they moved."""
    shift = np.linalg.norm(refined.centres - given.centres, axis=1)[seen]
    turn = np.einsum("vij,vkj->vik", refined.cam_from_world[seen, :3, :3], given.cam_from_world[seen, :3, :3])
    angle = np.degrees(np.linalg.norm(rotation_vectors(turn), axis=1))
    return replace(
        outcome,
        refined=tuple(view.name for view, was_seen in zip(scene.views, seen, strict=True) if was_seen),
        left=tuple(view.name for view, was_seen in zip(scene.views, seen, strict=True) if not was_seen),
        moved=round(float(np.median(shift)), 6),
        turned=round(float(np.median(angle)), 4),
    )


def _sparse_points(tracks: Tracks, points: Array) -> SparsePoints:
    starts = np.searchsorted(tracks.point, np.arange(len(points) + 1))
    return SparsePoints(
        torch.from_numpy(points),
        view_index=torch.from_numpy(tracks.view),
        track_start=torch.from_numpy(starts),
    )


def _subset(cameras: CameraArrays, views: Sequence[int]) -> CameraArrays:
    sizes = tuple(cameras.sizes[view] for view in views)
    return CameraArrays(cameras.K[list(views)], cameras.cam_from_world[list(views)], sizes)
