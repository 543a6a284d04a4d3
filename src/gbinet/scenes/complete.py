"""Depth ranges and source views, where the files of a scene do not give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gbinet.camera import Camera
from gbinet.errors import FormatError
from gbinet.formats.depth_files import read_depth
from gbinet.names import distinct_stems
from gbinet.scene import DepthRange, Scene, SourceView, SparsePoints, View
from gbinet.scenes.neighbours import rank_by_geometry, rank_by_tracks
from gbinet.scenes.ranges import range_from_depths, ranges_from_cameras, ranges_from_points

_NO_STEP = 1e-3  # of the nearest depth: cameras that are no further apart see the same picture
_GUESS = "is a guess from the cameras alone"


def completed(scene: Scene, *, depth_range: DepthRange | None = None, max_sources: int = 10) -> Scene:
    """The scene with a depth range, ranked source views and a usable name for every view."""
    warnings = list(scene.warnings)
    names = distinct_stems(view.name for view in scene.views)  # output files are named like the views
    scene = replace(
        scene, views=tuple(replace(v, name=name) for v, name in zip(scene.views, names, strict=True))
    )
    views = _with_ranges(scene, depth_range, warnings)
    views = _with_sources(replace(scene, views=views), max_sources, warnings)
    warnings += _off_centre_warnings(views) + _same_place_warnings(views)
    if len(views) < 2:
        warnings.append("only one view: depth needs at least two")
    return replace(scene, views=views, warnings=tuple(dict.fromkeys(warnings)))


def completed_by_points(scene: Scene, cameras: Sequence[Camera], points: SparsePoints) -> Scene:
    """A completed scene with other cameras.

    Views whose range was a guess from the cameras get range and sources from the points.
    """
    guesses: Sequence[DepthRange | None] = [None] * len(scene.views)
    if not scene.points:
        guesses = ranges_from_cameras([view.camera for view in scene.views])
    views = [replace(view, camera=camera) for view, camera in zip(scene.views, cameras, strict=True)]
    guessed = [view.depth_range == guess for view, guess in zip(views, guesses, strict=True)]
    if not any(guessed):
        return replace(scene, views=tuple(views))
    max_sources = max(len(view.sources) for view in views)
    views = [
        replace(view, depth_range=None, sources=()) if is_guess else view
        for view, is_guess in zip(views, guessed, strict=True)
    ]
    warnings = tuple(text for text in scene.warnings if _GUESS not in text)
    scene_with_points = replace(scene, views=tuple(views), points=points, warnings=warnings)
    return replace(completed(scene_with_points, max_sources=max_sources), points=scene.points)


def _off_centre_warnings(views: Sequence[View]) -> list[str]:
    """A warning if optical axes miss the middle half of the image: often, only images were resized."""
    off_centre = []
    for view in views:
        size = torch.tensor([view.camera.width, view.camera.height], dtype=torch.float64)
        if bool(((view.camera.K[:2, 2] / size - 0.5).abs() > 0.25).any()):
            off_centre.append(f"{view.name}, {view.camera.width}x{view.camera.height}")
    if not off_centre:
        return []
    return [
        f"the optical axis of {len(off_centre)} of {len(views)} views is far from the middle of the image "
        f"(first: {off_centre[0]}): fine for crops, wrong if the images were resized and their cameras "
        "were not"
    ]


def _same_place_warnings(views: Sequence[View]) -> list[str]:
    """A warning if all sources of a view were taken from its own place: nothing tells its depth."""
    centres = [view.camera.centre for view in views]
    affected = []
    for view, centre in zip(views, centres, strict=True):
        room = 0.0 if view.depth_range is None else _NO_STEP * view.depth_range.near
        if view.sources and all(float((centres[s.index] - centre).norm()) <= room for s in view.sources):
            affected.append(view.name)
    if not affected:
        return []
    return [
        f"all sources of {len(affected)} of {len(views)} views were taken where these were "
        f"(first: {affected[0]}): nothing tells their depth; check the positions "
        "of the cameras, or take photos from other places"
    ]


def _with_ranges(scene: Scene, given: DepthRange | None, warnings: list[str]) -> tuple[View, ...]:
    if given is not None:
        return tuple(replace(view, depth_range=given) for view in scene.views)
    ranges = [view.depth_range for view in scene.views]
    cameras = [view.camera for view in scene.views]
    if None in ranges and scene.points is not None and len(scene.points.xyz):
        ranges = _filled(ranges, ranges_from_points(cameras, scene.points))
    if None in ranges:
        ranges = _filled(ranges, [r or _measured_range(v) for r, v in zip(ranges, scene.views, strict=True)])
    missing = ranges.count(None)
    if missing:
        warnings.append(
            f"the depth range of {missing} of {len(ranges)} views {_GUESS}; "
            "check it, and give --depth-range NEAR FAR if it is wrong"
        )
        ranges = _filled(ranges, list(ranges_from_cameras(cameras)))
    return tuple(replace(v, depth_range=r) for v, r in zip(scene.views, ranges, strict=True))


def _filled(
    ranges: Sequence[DepthRange | None], more: Sequence[DepthRange | None]
) -> list[DepthRange | None]:
    """The ranges, with those of `more` in place of missing ones."""
    return [a or b for a, b in zip(ranges, more, strict=True)]


def _measured_range(view: View) -> DepthRange | None:
    """Range of a measured depth map (RGB-D); None where there is none."""
    if view.depth_path is None:
        return None
    try:
        values = read_depth(view.depth_path, view.depth_scale)[::4, ::4]
    except FormatError:
        return None  # reading this depth map later reports the error; the view itself is still good
    return range_from_depths(torch.from_numpy(values.copy()).reshape(-1))


def _with_sources(scene: Scene, max_sources: int, warnings: list[str]) -> tuple[View, ...]:
    views = scene.views
    if len(views) < 2 or all(view.sources for view in views):
        return views
    cameras = [view.camera for view in views]
    ranked: list[tuple[SourceView, ...]] = [view.sources for view in views]
    points = scene.points
    if points is not None and points.view_index is not None and len(points.view_index):
        by_tracks = rank_by_tracks(cameras, points, max_sources)
        ranked = [given or found for given, found in zip(ranked, by_tracks, strict=True)]
        missing = sum(not sources for sources in ranked)
        if missing:
            warnings.append(
                f"{missing} views share no points with others; their sources are chosen by camera"
            )
    if not all(ranked):
        ranges = [view.depth_range for view in views if view.depth_range is not None]
        by_geometry = rank_by_geometry(cameras, ranges, max_sources)
        ranked = [given or found for given, found in zip(ranked, by_geometry, strict=True)]
    alone = [view.name for view, sources in zip(views, ranked, strict=True) if not sources]
    if alone:
        warnings.append(
            f"{len(alone)} of {len(views)} views overlap with no other (first: {alone[0]}); they get no depth"
        )
    return tuple(replace(view, sources=s) for view, s in zip(views, ranked, strict=True))
