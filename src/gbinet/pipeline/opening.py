"""A folder that somebody gives -> a posed scene: read as it is, or through structure from motion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gbinet.errors import InputError, SceneError
from gbinet.inference.predictor import DepthConfig
from gbinet.scene import Scene
from gbinet.scenes.load import list_photos, load_scene, recognise
from gbinet.scenes.sfm.cameras import CameraSharing
from gbinet.scenes.sfm.pose import PosedPhotos, pose_photos

StageProgress = Callable[[str, int, int, str], None]  # stage, done, total, what


class Opening(Protocol):
    """The settings that decide how a folder is opened."""

    @property
    def depth(self) -> DepthConfig: ...

    @property
    def images(self) -> Path | None: ...

    @property
    def masks(self) -> Path | None: ...

    @property
    def camera(self) -> CameraSharing | None: ...


def open_scene(
    source: Scene | str | Path, out: Path, config: Opening, progress: StageProgress | None
) -> tuple[Scene, list[str], PosedPhotos | None]:
    """The scene, posed (bare photos go through structure from motion first), and what to say about it."""
    if isinstance(source, Scene):
        return source, [], None
    folder, notes = Path(source), list[str]()
    if not folder.is_dir():
        raise SceneError(f"{folder}: there is no such folder")
    given = config.depth.depth_range
    masks = config.masks
    if has_poses(folder, subfolders=config.camera == "per-folder"):
        if config.camera is not None:
            notes.append(f"--camera {config.camera} changes nothing here: the scene has its cameras already")
        read = stage_of(progress, "reading")
        scene = load_scene(
            folder,
            depth_range=given,
            images=config.images,
            masks=masks,
            cache=out / "undistorted",
            progress=read,
        )
        return scene, notes, None
    if config.images is not None:
        raise InputError(
            f"{folder} has no camera poses for the photos of --images; give their folder instead"
        )
    posed = pose_photos(folder, out / "sfm", stage_of(progress, "poses"), config.camera)
    scene = load_scene(
        posed.folder,
        kind="colmap",
        depth_range=given,
        masks=masks,
        cache=out / "undistorted",
        progress=stage_of(progress, "reading"),
    )
    return replace(scene, name=folder.resolve().name, kind="photos"), posed.warnings(), posed


def has_poses(folder: Path, *, subfolders: bool = False) -> bool:
    """Whether a folder is a posed scene; False for bare photos; an error if it is neither."""
    try:
        recognise(folder)
    except SceneError:
        if list_photos(folder, subfolders=subfolders):
            return False
        raise
    return True


def stage_of(progress: StageProgress | None, name: str) -> Callable[[int, int, str], None] | None:
    if progress is None:
        return None
    return lambda done, total, what: progress(name, done, total, what)
