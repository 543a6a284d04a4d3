"""A folder in, a Scene out: recognise its kind, read it, complete what the files do not give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gbinet.errors import SceneError, no_folder
from gbinet.formats.made_by import makers_of
from gbinet.progress import Progress
from gbinet.scene import DepthRange, Scene
from gbinet.scenes.complete import completed
from gbinet.scenes.kind import ReadOptions
from gbinet.scenes.kinds import kind_named, recognise, why_not


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
    images, masks, cache = (None if path is None else Path(path) for path in (images, masks, cache))
    if not folder.is_dir():
        raise SceneError(no_folder(folder))
    if images is not None and not images.is_dir():
        raise SceneError(f"{images}: there is no such folder of photos (--images)")
    if folder.name in ("", ".."):
        folder = folder.resolve()  # names matter (scans, Tanks and Temples), and `.` has none
    found = recognise(folder) if kind is None else kind_named(kind)
    if found is None or found.read is None:
        raise SceneError(why_not(folder))
    options = ReadOptions(images, masks, interval_scale, cache, progress)
    scene = _without_predictions(found.read(folder, options))
    unmasked = [view.name for view in scene.views if view.mask_path is None]
    if masks is not None and unmasked:
        warning = (
            f"{masks}: holds no mask for {len(unmasked)} of {len(scene.views)} views (first: {unmasked[0]})"
        )
        scene = replace(scene, warnings=(*scene.warnings, warning))
    return completed(scene, depth_range=depth_range, max_sources=max_sources)


def _without_predictions(scene: Scene) -> Scene:
    """The scene without depth maps that `gbinet` predicted: these are not true depth."""
    predicted = makers_of(view.depth_path for view in scene.views if view.depth_path is not None)
    if not predicted:
        return scene
    folders = sorted({str(path.parent) for path in predicted})
    views = tuple(replace(v, depth_path=None) if v.depth_path in predicted else v for v in scene.views)
    warning = (
        f"{len(predicted)} depth maps in {', '.join(folders)} are predictions of gbinet, not true depth, and "
        "are not read as such; to fuse or convert them, name their folder with --depth"
    )
    return replace(scene, views=views, warnings=(*scene.warnings, warning))
