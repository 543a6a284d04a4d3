"""A folder -> a posed scene: read as it is, or through structure from motion."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from gbinet.errors import InputError, SceneError, no_folder
from gbinet.inference.predictor import DepthConfig
from gbinet.progress import Progress, StepProgress
from gbinet.scene import Scene
from gbinet.scenes.kinds import recognise, why_not
from gbinet.scenes.load import load_scene
from gbinet.scenes.photos import list_photos
from gbinet.scenes.sfm.cameras import CameraSharing
from gbinet.scenes.sfm.pose import PosedPhotos, pose_photos


class OpenSettings(Protocol):
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
    source: Scene | str | Path, out: Path, config: OpenSettings, progress: StepProgress | None
) -> tuple[Scene, list[str], PosedPhotos | None]:
    """The posed scene, notes for the user, and the outcome of structure from motion if it was needed."""
    if isinstance(source, Scene):
        return source, [], None
    folder, notes = Path(source), list[str]()
    if not folder.is_dir():
        raise SceneError(no_folder(folder))
    kind = recognise(folder)
    if kind is None and not (config.camera == "per-folder" and list_photos(folder, subfolders=True)):
        raise SceneError(why_not(folder))
    load = partial(
        load_scene,
        depth_range=config.depth.depth_range,
        masks=config.masks,
        cache=out / "undistorted",
        progress=step_of(progress, "reading"),
    )
    if kind is not None and kind.posed:
        if config.camera is not None:
            notes.append(f"--camera {config.camera} changes nothing here: the scene has its cameras already")
        return load(folder, images=config.images), notes, None
    if config.images is not None:
        raise InputError(
            f"{folder} has no camera poses for the photos of --images; give their folder instead"
        )
    poses = pose_photos(folder, out / "sfm", step_of(progress, "poses"), config.camera)
    scene = load(poses.folder, kind="colmap")
    return replace(scene, name=folder.resolve().name, kind="photos"), poses.warnings(), poses


def step_of(progress: StepProgress | None, name: str) -> Progress | None:
    """The progress of one step."""
    return None if progress is None else partial(progress, name)
