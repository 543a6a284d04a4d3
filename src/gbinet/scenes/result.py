"""What a run leaves is a scene again: `scene.json` beside `photos/`, with the cameras of the depth maps.

Photos that lie elsewhere are linked into `photos/` under the names of their views, undistorted ones among
them, and masks into `masks/`; so nothing outside of the folder is named in the file.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gbinet.errors import FormatError, GBiNetError, InputError, SceneError
from gbinet.formats.atomic import atomic_path, remove_temporary, write_json
from gbinet.formats.fingerprint import UNREADABLE, digest
from gbinet.formats.image import image_size
from gbinet.formats.inside import Inside
from gbinet.formats.reading import is_file, read_json, read_record
from gbinet.names import shown
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes.kind import Kind, Reading
from gbinet.scenes.views import MaskFinder, checked_camera

FILE = "scene.json"
_FORMAT = "gbinet-scene-1"
FOLDERS = ("photos", "masks")  # where links and copies are put


def write_result(scene: Scene, folder: Path) -> Path:
    """Write `scene.json`, and links to what lies outside of `folder` (copies where links are not possible).

    The file comes before the links that it lists: a run that is stopped among them can be started again.
    """
    wanted: dict[str, Path] = {}  # name below the folder -> the file it links to
    views = [_entry(view, folder, wanted) for view in scene.views]
    used = {entry[key] for entry in views for key in ("photo", "mask")} - set(wanted)
    earlier = _earlier(folder, used)
    for name in wanted:
        if name not in earlier and os.path.lexists(folder / name):
            raise GBiNetError(
                f"{folder / name} already exists and was not written by gbinet; move it or choose another "
                "output folder"
            )
    remove_temporary(*(folder / part for part in FOLDERS))  # halves of copies
    for name in earlier:
        (folder / name).unlink()
    copied = bool(wanted) and not _can_link(folder)
    content = {
        "format": _FORMAT,
        "name": scene.name,
        "made_from": scene.kind,
        "links": [] if copied else list(wanted),
        "copies": {name: digest(path) for name, path in wanted.items()} if copied else {},
        "views": views,
    }
    written = write_json(folder / FILE, content)
    for name, path in wanted.items():
        _put(path, folder / name, folder.resolve(), copied)
    return written


def _earlier(folder: Path, used: set[str]) -> set[str]:
    """Links and copies that an earlier run recorded, if they are still what it made; not what is `used`."""
    record = read_record(folder / FILE)
    links, copies = record.get("links"), record.get("copies")
    named = [str(name) for name in links] if isinstance(links, list) else []
    found = {name for name in named if _is_below(name) and (folder / name).is_symlink()}
    for name, made in copies.items() if isinstance(copies, dict) else ():
        path = folder / name
        if (
            _is_below(name)
            and name not in used
            and not path.is_symlink()
            and digest(path) == made != UNREADABLE
        ):
            found.add(name)
    return found


def _is_below(name: str) -> bool:
    parts = Path(name).parts
    return len(parts) > 1 and parts[0] in FOLDERS and ".." not in parts


def _can_link(folder: Path) -> bool:
    """Whether links can be made here: on Windows, not everybody may."""
    trial = folder / f".gbinet-tmp-{secrets.token_hex(4)}-link"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        trial.symlink_to(FILE)
    except OSError:
        return False
    trial.unlink()
    return True


def _put(path: Path, at: Path, here: Path, copied: bool) -> None:
    """The file under another name: a copy of it, or a link, which is relative inside of the folder `here`."""
    at.parent.mkdir(parents=True, exist_ok=True)
    if copied:
        with atomic_path(at) as temporary:
            shutil.copyfile(path, temporary)
    else:
        at.symlink_to(os.path.relpath(path, at.parent.resolve()) if path.is_relative_to(here) else path)


def _entry(view: View, folder: Path, wanted: dict[str, Path]) -> dict[str, Any]:
    camera, limits = view.camera, view.depth_range
    mask = view.mask_path if view.mask_path != view.image_path else None  # else, the photo's own transparency
    return {
        "name": view.name,
        "photo": _within(view.image_path, folder, "photos", view.name, wanted),
        "original": (view.original_path or view.image_path).name,
        "width": camera.width,
        "height": camera.height,
        "K": camera.K.tolist(),
        "cam_from_world": camera.cam_from_world.tolist(),
        "depth_range": None if limits is None else [limits.near, limits.far],
        "sources": [[source.index, source.score] for source in view.sources],
        "mask": None if mask is None else _within(mask, folder, "masks", view.name, wanted),
        "depth": _truth(view, folder),
        "depth_scale": view.depth_scale,
    }


def _truth(view: View, folder: Path) -> str | None:
    """True depth, if it belongs to this very folder; else the depth maps of the run are what counts there."""
    here, there = folder.resolve(), (view.depth_path or Path("/")).resolve()
    return there.relative_to(here).as_posix() if there.is_relative_to(here) else None


def _within(path: Path, folder: Path, part: str, name: str, wanted: dict[str, Path]) -> str:
    """The file's name below the folder; where it lies elsewhere or is named otherwise, one that is wanted."""
    here, there = folder.resolve(), path.resolve()
    if there.is_relative_to(here) and there.stem == name:
        return there.relative_to(here).as_posix()
    below = (Path(part) / f"{name}{path.suffix}").as_posix()
    wanted[below] = there
    return below


def recognise(folder: Path) -> bool:
    return read_record(folder / FILE).get("format") == _FORMAT


def read(folder: Path, reading: Reading) -> Scene:
    path = folder / FILE
    content = read_json(path, 1 << 28)
    inside = Inside(folder, images=reading.images)
    finder = MaskFinder(folder, folder / "photos", reading.masks)
    views, warnings, kept = list[View](), list[str](), dict[int, int]()
    try:
        for index, entry in enumerate(content["views"]):
            view = _view(path, entry, folder, inside)
            if not is_file(view.image_path):
                warnings.append(
                    f"left out {shown(view.name)}: its photo {shown(entry['photo'])} is not there"
                )
                continue
            try:
                size = image_size(view.image_path)
            except FormatError as error:
                warnings.append(f"left out {shown(view.name)}: {error}")
                continue
            found = finder.find(view.image_path) if reading.masks is not None else None
            kept[index] = len(views)
            camera = view.camera.resized(*size)  # a smaller copy may stand in
            views.append(replace(view, camera=camera, mask_path=found or view.mask_path))
        sources = [_sources(content["views"][index], kept) for index in kept]
        name = str(content["name"])
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise FormatError(path, f"is not a scene of gbinet ({type(error).__name__}: {error})") from error
    if not views:
        raise SceneError(f"{folder}: none of its photos can be read; say where they are: --images DIR")
    ranked = tuple(replace(view, sources=found) for view, found in zip(views, sources, strict=True))
    return Scene(name, "gbinet", folder, ranked, warnings=tuple(warnings))


def _view(path: Path, entry: dict[str, Any], folder: Path, inside: Inside) -> View:
    K, pose = (np.array(entry[key], dtype=np.float64) for key in ("K", "cam_from_world"))
    name, limits = str(entry["name"]), entry["depth_range"]
    camera = checked_camera(path, K, pose, (int(entry["width"]), int(entry["height"])), f"view {name}")
    mask, depth = (
        None if entry[key] is None else inside.check(folder / str(entry[key])) for key in ("mask", "depth")
    )
    return View(
        name,
        camera,
        inside.find_photo(folder, str(entry["photo"])),
        None if limits is None else DepthRange(float(limits[0]), float(limits[1])),
        mask_path=mask,
        depth_path=depth,
        depth_scale=float(entry["depth_scale"]),
    )


def _sources(entry: dict[str, Any], kept: dict[int, int]) -> tuple[SourceView, ...]:
    pairs = [(int(index), float(score)) for index, score in entry["sources"]]
    return tuple(SourceView(kept[index], score) for index, score in pairs if index in kept)


KIND = Kind(
    "gbinet",
    "result of gbinet",
    FILE,
    recognise,
    read,
    folders=(*FOLDERS, "truth"),
)
