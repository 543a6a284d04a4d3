"""Cameras that are nearly right -> cameras that fit the photos, in the same frame and scale.

Features are matched near the epipolar lines of the given cameras, joined to tracks and triangulated; a bundle
adjustment moves the cameras, within what their error makes likely. Some tracks have no part in that: whether
the new cameras are better is measured with them.
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
from gbinet.scenes.refine.adjust import Trust, adjusted, rotation_vectors
from gbinet.scenes.refine.features import Features, find_features
from gbinet.scenes.refine.guided import (
    Array,
    CameraArrays,
    Matches,
    apart,
    epipolar_errors,
    find_matches,
    pair_of,
    pairs_of,
    poses_of,
)
from gbinet.scenes.refine.outcome import OFF, CameraCheck, Refinement
from gbinet.scenes.refine.tracks import Tracks, link, reprojected, triangulated
from gbinet.scenes.sfm.colmap import quiet

_REACH = 0.03  # of a photo's longer side: how far off its epipolar line a feature is looked for
_HELD_OUT_EVERY = 5  # every 5th track is held out to check the result
_LEAST_MATCHES = 40  # that judge
_LEAST_SEEN = 12  # points that a view must see to be refined
_LEAST_VIEWS = 3  # two photos say nothing about how far apart they were taken
_TURNS = 4  # of triangulation and adjustment
_BETTER = 0.8  # share of the distance from the lines that may be left: less gain is not worth a change
_NOISE = 1.05  # standard deviation of a pixel over the median distance of right matches from their lines
_LEAST_OFF = 1e-6  # px: exact matches, which only made scenes have, leave cameras some room too
_FINEST = 0.2  # px: no feature is more certain
_WRONG, _LEAST_WRONG = 6.0, 2.0  # times that distance, and px: a wrong match
# Of that distance with the given cameras, the share that the turn of one camera explains, and its shift. With
# 0.7, cameras of a headset follow their few matches too far: fewer points then have the measured depth.
_SHARE = 0.4
_CHECKED = 8  # pairs of a quick check


@dataclass(frozen=True)
class Refined:
    """What came of it."""

    cameras: CameraArrays
    outcome: Refinement
    points: SparsePoints | None  # where cameras were refined


def refine(scene: Scene, progress: Progress | None = None) -> Refined:
    """New cameras for a scene, or its own, and why."""
    began = time.perf_counter()
    with quiet() as pycolmap:
        found = _refined(pycolmap, scene, progress)
    return replace(found, outcome=replace(found.outcome, seconds=round(time.perf_counter() - began, 3)))


def check_cameras(scene: Scene, progress: Progress | None = None) -> CameraCheck:
    """How far matches lie off their epipolar lines, for a few pairs of neighbours."""
    given = cameras_of(scene)
    able = set(apart(given, pairs_of([view.best_sources() for view in scene.views])))
    own = [
        [p for p in (pair_of(i, j) for j in v.best_sources()) if p in able] for i, v in enumerate(scene.views)
    ]
    best = [some[0] for some in own if some]  # of each view that has any
    pairs = sorted(set(best[:: max(1, len(best) // _CHECKED)][:_CHECKED]))
    used = sorted({view for pair in pairs for view in pair})
    number = {view: place for place, view in enumerate(used)}
    some = _some(given, used)
    with quiet() as pycolmap:
        features = find_features(pycolmap, [scene.views[view] for view in used], progress)
        few = [(number[a], number[b]) for a, b in pairs]
        matches = find_matches(pycolmap, features, some, few, _reach(some), progress, "comparing photos")
    off = _off(matches, features, some)
    return CameraCheck(len(matches), len(off), float(np.median(off)) if len(off) >= _LEAST_MATCHES else None)


def cameras_of(scene: Scene) -> CameraArrays:
    views = scene.views
    return CameraArrays(
        np.stack([view.camera.K.double().numpy() for view in views]),
        np.stack([view.camera.cam_from_world.double().numpy() for view in views]),
        tuple((view.camera.width, view.camera.height) for view in views),
    )


def _local(cameras: CameraArrays) -> tuple[CameraArrays, Array]:
    """The cameras in a frame whose origin is amid them, and that origin [3].

    Their rotations are made exact: what files round counts for metres where coordinates are those of a map.
    """
    centres = np.linalg.inv(cameras.cam_from_world)[:, :3, 3]
    middle: Array = centres.mean(0)
    left, _, right = np.linalg.svd(cameras.cam_from_world[:, :3, :3])
    return replace(cameras, cam_from_world=poses_of(left @ right, centres - middle)), middle


def _refined(pycolmap: object, scene: Scene, progress: Progress | None) -> Refined:
    asked, count = cameras_of(scene), len(scene.views)
    outcome = Refinement(count)
    if count < _LEAST_VIEWS:
        return _kept(asked, outcome, f"{_LEAST_VIEWS} views are needed to refine them, there are {count}")
    given, middle = _local(asked)
    pairs = pairs_of([[source.index for source in view.sources] for view in scene.views])
    features = find_features(pycolmap, scene.views, progress)
    matches = find_matches(pycolmap, features, given, pairs, _reach(given), progress, "comparing photos")
    tracks = link(matches, features)
    judging = tracks.point % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    telling = {pair: matches[pair] for pair in apart(given, matches)}
    if matches and not telling:
        return _kept(asked, outcome, "all photos that share features were taken from one place")
    judges = _among(telling, features, tracks, judging)
    before = _off(judges, features, given)
    outcome = replace(outcome, pairs=len(matches))
    if len(before) < _LEAST_MATCHES:
        few = len(_off(telling, features, given))
        return _kept(asked, outcome, f"the photos share too few features ({few:,} matches)")
    used = _among(telling, features, tracks, ~judging)
    off = partial(_off, used, features)
    units = np.array([one.unit for one in features])
    found, tracks, points = _searched(given, tracks.only(~judging), off, units, progress)
    seen = np.bincount(tracks.view, minlength=count) >= _LEAST_SEEN
    if int(seen.sum()) < _LEAST_VIEWS:
        return _kept(
            asked, outcome, f"only {int(seen.sum())} views share {_LEAST_SEEN} points or more with others"
        )
    poses = np.where(seen[:, None, None], found.cam_from_world, given.cam_from_world)
    found = replace(found, cam_from_world=poses)
    outcome = replace(
        outcome,
        before=round(float(np.median(before)), 4),
        after=round(float(np.median(_off(judges, features, found))), 4),
        points=len(points),
    )
    assert outcome.before is not None and outcome.after is not None
    if outcome.after > _BETTER * outcome.before:
        return _kept(asked, outcome, _no_better(outcome.before, outcome.after))
    poses = poses_of(found.cam_from_world[:, :3, :3], found.centres + middle)
    poses = np.where(seen[:, None, None], poses, asked.cam_from_world)
    outcome = _moved(scene, given, found, seen, outcome)
    return Refined(replace(asked, cam_from_world=poses), outcome, _sparse(tracks, points + middle))


def _no_better(before: float, after: float) -> str:
    lie = f"matches lie {before:.2f} px off their epipolar lines in the median"
    if before <= OFF:
        return f"they fit the photos as well as refined ones: {lie}"
    return (
        f"none were found that fit clearly better: {lie}, {after:.2f} px with the best ones; focal length or "
        "lens distortion may be wrong, or the cameras too far off"
    )


def _kept(given: CameraArrays, outcome: Refinement, why: str) -> Refined:
    return Refined(given, replace(outcome, kept_because=why), None)


def _searched(
    given: CameraArrays,
    every: Tracks,
    off: Callable[[CameraArrays], Array],  # distances of matches from their lines, px
    units: Array,  # [V] px of a photo for one of these
    progress: Progress | None,
) -> tuple[CameraArrays, Tracks, Array]:
    """Triangulation and adjustment in turn, each with the cameras of the one before."""
    now, tracks, points = given, every, np.zeros((0, 3))
    noise = at_first = max(float(np.median(off(given))), _LEAST_OFF)
    angle = _SHARE * at_first * float(np.median(units)) / float(np.median(given.K[:, 0, 0]))
    for turn in range(_TURNS):
        if progress:
            progress(turn, _TURNS, "adjusting cameras")
        tracks, points = triangulated(every, now, np.maximum(_WRONG * noise, _LEAST_WRONG) * units)
        if not tracks.count:
            return given, tracks, points
        depth = float(np.median(reprojected(tracks, now, points)[1]))
        pixel = max(_FINEST, _NOISE * noise) * float(np.median(units))
        now, points = adjusted(given, now, tracks, points, Trust(pixel, angle, angle * depth))
        noise = float(np.median(off(now)))
    if progress:
        progress(_TURNS, _TURNS, "adjusting cameras")
    return now, tracks, points


def _reach(cameras: CameraArrays) -> Array:
    return _REACH * np.array([max(size) for size in cameras.sizes])


def _among(
    matches: Matches, features: Sequence[Features], tracks: Tracks, chosen: NDArray[np.bool_]
) -> Matches:
    """Matches of which both ends belong to the chosen observations."""
    taken = [np.zeros(len(one.pixels), bool) for one in features]
    for view in range(len(features)):
        taken[view][tracks.feature[chosen & (tracks.view == view)]] = True
    return {(a, b): m[taken[a][m[:, 0]] & taken[b][m[:, 1]]] for (a, b), m in matches.items()}


def _off(matches: Matches, features: Sequence[Features], cameras: CameraArrays) -> Array:
    """[M] distances of all matches from their lines, in pixels of the copies that features are found in."""
    found = [np.zeros(0)]
    for (a, b), m in sorted(matches.items()):
        off = epipolar_errors(cameras, (a, b), features[a].pixels[m[:, 0]], features[b].pixels[m[:, 1]])
        found.append(off / max(features[a].unit, features[b].unit))
    return np.concatenate(found)


def _moved(
    scene: Scene, given: CameraArrays, found: CameraArrays, seen: NDArray[np.bool_], outcome: Refinement
) -> Refinement:
    shift = np.linalg.norm(found.centres - given.centres, axis=1)[seen]
    turn = np.einsum("vij,vkj->vik", found.cam_from_world[seen, :3, :3], given.cam_from_world[seen, :3, :3])
    angle = np.degrees(np.linalg.norm(rotation_vectors(turn), axis=1))
    names = [view.name for view in scene.views]
    return replace(
        outcome,
        refined=tuple(name for name, own in zip(names, seen, strict=True) if own),
        left=tuple(name for name, own in zip(names, seen, strict=True) if not own),
        moved=round(float(np.median(shift)), 6),
        turned=round(float(np.median(angle)), 4),
    )


def _sparse(tracks: Tracks, points: Array) -> SparsePoints:
    starts = np.searchsorted(tracks.point, np.arange(len(points) + 1))
    return SparsePoints(
        torch.from_numpy(points),
        view_index=torch.from_numpy(tracks.view),
        track_start=torch.from_numpy(starts),
    )


def _some(cameras: CameraArrays, used: Sequence[int]) -> CameraArrays:
    sizes = tuple(cameras.sizes[view] for view in used)
    return CameraArrays(cameras.K[list(used)], cameras.cam_from_world[list(used)], sizes)
