"""A folder in, a Scene out: recognise the shape, read it, fill in what the files do not say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gbinet.data import dtu, tanks
from gbinet.data.from_colmap import Progress, load_colmap, model_folder
from gbinet.data.from_mvsnet import DEPTH_FOLDERS, INTERVAL_SCALE, is_mvsnet, load_mvsnet
from gbinet.data.from_nerfstudio import load_nerfstudio, transforms_file
from gbinet.data.from_rgbd import is_rgbd, load_rgbd
from gbinet.data.ranges import range_from_depths, ranges_from_cameras, ranges_from_points
from gbinet.data.views import MASKS, is_mask_name
from gbinet.errors import FormatError, SceneError
from gbinet.formats.depth_files import read_depth
from gbinet.formats.image import is_image_name
from gbinet.formats.made_by import makers_of
from gbinet.names import distinct_stems
from gbinet.scene import (
    DepthRange,
    Scene,
    SourceView,
    View,
    rank_by_geometry,
    rank_by_tracks,
)

KINDS = ("colmap", "mvsnet", "blendedmvs", "dtu", "nerfstudio", "rgbd")


def load_scene(
    folder: str | Path,
    *,
    kind: str | None = None,
    depth_range: DepthRange | None = None,
    images: str | Path | None = None,
    masks: str | Path | None = None,
    interval_scale: float | None = None,
    max_sources: int = 10,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Scene:
    """Read a folder of posed photos: COLMAP, MVSNet, DTU, BlendedMVS, nerfstudio / instant-ngp or RGB-D.

    Only image headers are read; pixels follow when they are needed.

    Args:
        folder: The scene. What lies outside of it and of `images` is not read.
        kind: Read it as this ("colmap", "mvsnet", "nerfstudio", ...) instead of recognising it.
        depth_range: For every view, in the scene's unit, instead of what the files or the sparse points say.
        images: Folder of the photos, where it is not beside the cameras.
        masks: Folder of masks (0 = ignore), where it is not `masks` beside the images.
        interval_scale: Stretches the range of MVSNet cam files that give only `near interval`; by default
            what everybody uses: 0.8, and 1 for Tanks and Temples.
        max_sources: How many source views to keep per view where the files do not list them.
        cache: Where undistorted images go; by default `<folder>/.gbinet_cache`, or a temporary folder.
        progress: Called with (done, total, what) while images are undistorted.

    Returns:
        The scene, every view with its camera, depth range and source views. `scene.warnings` says what you
        should know about how it was understood.

    Raises:
        SceneError: If the folder does not exist or is not a scene.
        FormatError: If a file of the scene is broken.

    Example:
        >>> import gbinet
        >>> scene = gbinet.load_scene("my-scene")
        >>> scene.views[0].depth_range
        DepthRange(near=2.5, far=6.5)
    """
    folder = Path(folder)
    images = None if images is None else Path(images)
    masks = None if masks is None else Path(masks)
    cache_at = None if cache is None else Path(cache)
    if not folder.is_dir():
        raise SceneError(f"{folder}: there is no such folder")
    if images is not None and not images.is_dir():
        raise SceneError(f"{images}: there is no such folder of photos (--images)")
    if folder.name in ("", ".."):
        folder = folder.resolve()  # names matter (scans, Tanks and Temples), and `.` has none
    kind = kind or recognise(folder)
    if interval_scale is None:
        interval_scale = tanks.INTERVAL_SCALE if folder.name in tanks.INTERMEDIATE else INTERVAL_SCALE
    scale = interval_scale
    readers: dict[str, Callable[[], Scene]] = {
        "colmap": lambda: load_colmap(folder, images=images, masks=masks, cache=cache_at, progress=progress),
        "mvsnet": lambda: load_mvsnet(folder, images=images, masks=masks, interval_scale=scale),
        "blendedmvs": lambda: load_mvsnet(folder, images=images, masks=masks, interval_scale=scale),
        "nerfstudio": lambda: load_nerfstudio(
            folder, images=images, masks=masks, cache=cache_at, progress=progress
        ),
        "dtu": lambda: _load_dtu(folder, images),
        "rgbd": lambda: load_rgbd(folder, images=images, masks=masks),
    }
    if kind not in readers:
        raise SceneError(f"'{kind}' is not a kind of scene; there are {', '.join(KINDS)}")
    scene = _without_predictions(readers[kind]())
    without = [view.name for view in scene.views if view.mask_path is None]
    if masks is not None and without:
        lack = f"{masks}: holds no mask for {len(without)} of {len(scene.views)} views (first: {without[0]})"
        scene = replace(scene, warnings=(*scene.warnings, lack))
    return completed(scene, depth_range=depth_range, max_sources=max_sources)


def _without_predictions(scene: Scene) -> Scene:
    """Depth maps of ours where true ones would lie are not the truth, and say nothing about the range."""
    predicted = makers_of(view.depth_path for view in scene.views if view.depth_path is not None)
    if not predicted:
        return scene
    places = sorted({str(path.parent) for path in predicted})
    views = tuple(replace(v, depth_path=None) if v.depth_path in predicted else v for v in scene.views)
    note = (
        f"{len(predicted)} depth maps in {', '.join(places)} are predictions of gbinet, not true depth, and "
        "are not read as such; to fuse or convert them, name their folder with --depth"
    )
    return replace(scene, views=views, warnings=(*scene.warnings, note))


def recognise(folder: Path) -> str:
    """The kind of scene that a folder holds, or a SceneError that says what was looked for."""
    if dtu.parse_scan_folder(folder) is not None or dtu.is_training_set(folder):
        return "dtu"
    place = model_folder(folder)
    if place is not None and place.parent.name != "colmap":
        return "colmap"
    if transforms_file(folder) is not None:
        return "nerfstudio"
    if is_mvsnet(folder):
        return "blendedmvs" if (folder / "blended_images").is_dir() else "mvsnet"
    if is_rgbd(folder):
        return "rgbd"
    if place is not None:
        return "colmap"
    photos = list_photos(folder)
    if photos:
        raise SceneError(
            f"{folder}: {len(photos)} photos without camera poses. `gbinet reconstruct` finds the poses "
            "first (structure from motion); or put a COLMAP model, transforms.json or MVSNet cams beside them"
        )
    raise SceneError(
        f"{folder}: is not a scene. Looked for a COLMAP model (sparse/0, sparse), transforms.json, MVSNet "
        "cameras (cams/*_cam.txt), an RGB-D folder (images, K.txt, poses.txt) and photos"
    )


def is_scene_folder(name: str) -> bool:
    """Whether readers look into a folder of this name for a part of a scene."""
    known = (
        *DEPTH_FOLDERS,
        "images",
        "blended_images",
        "masks",
        "mask",
        "sparse",
        "dense",
        "colmap",
        "stereo",
    )
    return name in known or name.startswith("cams")


def _load_dtu(folder: Path, images: Path | None) -> Scene:
    if images is not None:
        raise SceneError("a scan of DTU's training set is its folder of photos: omit --images")
    found = dtu.parse_scan_folder(folder)
    if found is None:
        raise SceneError(
            f"{folder}: to load one scan of DTU's training set, give its folder of photos, e.g. "
            f"{folder / 'Rectified_raw' / 'scan2'}"
        )
    return dtu.load_scan(*found)


def list_photos(folder: str | Path, *, subfolders: bool = False) -> list[Path]:
    """Photos in `folder` itself, or else in `folder/images`, by name; masks are left out.

    subfolders  photos of all folders in `folder` too
    """
    if subfolders:
        inner = [p for p in sorted(Path(folder).glob("*/")) if p.name[0] != "." and p.name not in MASKS]
        found = [p for place in (Path(folder), *inner) for p in sorted(place.iterdir())]
        return [p for p in found if is_image_name(p) and not is_mask_name(p)]
    for place in (Path(folder), Path(folder) / "images"):
        if place.is_dir():
            photos = [p for p in sorted(place.iterdir()) if is_image_name(p) and not is_mask_name(p)]
            if photos:
                return photos
    return []


# ---- what the files do not say -----------------------------------------------------------------------------


def completed(scene: Scene, *, depth_range: DepthRange | None = None, max_sources: int = 10) -> Scene:
    """The scene with a depth range and ranked source views for every view."""
    warnings = list(scene.warnings)
    names = distinct_stems(view.name for view in scene.views)  # our files are named like the views
    scene = replace(
        scene, views=tuple(replace(v, name=name) for v, name in zip(scene.views, names, strict=True))
    )
    views = _with_ranges(scene, depth_range, warnings)
    views = _with_sources(replace(scene, views=views), max_sources, warnings)
    warnings += _odd_centres(views)
    if len(views) < 2:
        warnings.append("only one view: depth needs at least two")
    return replace(scene, views=views, warnings=tuple(dict.fromkeys(warnings)))


def _odd_centres(views: Sequence[View]) -> list[str]:
    """A warning where optical axes miss the middle half of the image: mostly, images were made smaller."""
    odd = []
    for view in views:
        size = torch.tensor([view.camera.width, view.camera.height], dtype=torch.float64)
        if bool(((view.camera.K[:2, 2] / size - 0.5).abs() > 0.25).any()):
            odd.append(f"{view.name}, {view.camera.width}x{view.camera.height}")
    if not odd:
        return []
    return [
        f"the optical axis of {len(odd)} of {len(views)} views is far from the middle of the image "
        f"(first: {odd[0]}): fine for crops, wrong if the images were resized and their cameras were not"
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
    lacking = ranges.count(None)
    if lacking:
        warnings.append(
            f"the depth range of {lacking} of {len(ranges)} views is a guess from the cameras alone; "
            "check it, and give --depth-range NEAR FAR if it is wrong"
        )
        ranges = _filled(ranges, list(ranges_from_cameras(cameras)))
    return tuple(replace(v, depth_range=r) for v, r in zip(scene.views, ranges, strict=True))


def _filled(
    ranges: Sequence[DepthRange | None], more: Sequence[DepthRange | None]
) -> list[DepthRange | None]:
    return [a or b for a, b in zip(ranges, more, strict=True)]


def _measured_range(view: View) -> DepthRange | None:
    """Range of a measured depth map (RGB-D); None where there is none."""
    if view.depth_path is None:
        return None
    try:
        values = read_depth(view.depth_path, view.depth_scale)[::4, ::4]
    except FormatError:
        return None  # whoever needs this depth map will say so; the view itself is still good
    return range_from_depths(torch.from_numpy(values.copy()).reshape(-1))


def _with_sources(scene: Scene, max_sources: int, warnings: list[str]) -> tuple[View, ...]:
    views = scene.views
    lacking = [index for index, view in enumerate(views) if not view.sources]
    if not lacking or len(views) < 2:
        return views
    cameras = [view.camera for view in views]
    ranked: list[tuple[SourceView, ...]] = [view.sources for view in views]
    points = scene.points
    if points is not None and points.view_index is not None and len(points.view_index):
        by_tracks = rank_by_tracks(cameras, points, max_sources)
        ranked = [own or found for own, found in zip(ranked, by_tracks, strict=True)]
        lost = sum(not sources for sources in ranked)
        if lost:
            warnings.append(f"{lost} views share no points with others; their sources are chosen by camera")
    if not all(ranked):
        ranges = [view.depth_range for view in views if view.depth_range is not None]
        by_geometry = rank_by_geometry(cameras, ranges, max_sources)
        ranked = [own or found for own, found in zip(ranked, by_geometry, strict=True)]
    alone = [view.name for view, sources in zip(views, ranked, strict=True) if not sources]
    if alone:
        warnings.append(
            f"{len(alone)} of {len(views)} views overlap with no other (first: {alone[0]}); they get no depth"
        )
    return tuple(replace(view, sources=s) for view, s in zip(views, ranked, strict=True))
