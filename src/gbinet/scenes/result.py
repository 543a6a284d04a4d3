"""An output folder is a scene itself: `scene.json` beside `photos/`, with the cameras of the depth maps.

Photos that lie elsewhere, such as undistorted ones, are linked into `photos/` under the names of their views,
and masks into `masks/`; so the file names nothing outside of the folder.
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
from gbinet.formats.allowed_folders import AllowedFolders
from gbinet.formats.atomic import atomic_path, remove_temporary, write_json
from gbinet.formats.fingerprint import UNREADABLE, digest
from gbinet.formats.image import image_size
from gbinet.formats.reading import is_file, read_json, read_record
from gbinet.names import printable
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes.kind import Kind, ReadOptions
from gbinet.scenes.views import MaskFinder, checked_camera

FILE = "scene.json"
_FORMAT = "gbinet-scene-1"
FOLDERS = ("photos", "masks")  # where links and copies are put


def write_result(scene: Scene, folder: Path) -> Path:
    """Write `scene.json`, and links to what lies outside of `folder` (copies where links are not possible).

    The file comes before the links that it lists: a run that is stopped among them can be started again.
    """
    targets: dict[str, Path] = {}  # name below the folder -> the file that it links to
    views = [_entry(view, folder, targets) for view in scene.views]
    used = {entry[key] for entry in views for key in ("photo", "mask")} - set(targets)
    earlier = _earlier(folder, used)
    for name in targets:
        if name not in earlier and os.path.lexists(folder / name):
            raise GBiNetError(
                f"{folder / name} already exists and was not written by gbinet; move it or choose another "
                "output folder"
            )
    remove_temporary(*(folder / part for part in FOLDERS))  # halves of copies
    for name in earlier:
        (folder / name).unlink()
    copied = bool(targets) and not _can_link(folder)
    content = {
        "format": _FORMAT,
        "name": scene.name,
        "made_from": scene.kind,
        "links": [] if copied else list(targets),
        "copies": {name: digest(path) for name, path in targets.items()} if copied else {},
        "views": views,
    }
    written = write_json(folder / FILE, content)
    for name, path in targets.items():
        _link_or_copy(path, folder / name, folder.resolve(), copied)
    return written


def _earlier(folder: Path, used: set[str]) -> set[str]:
    """Links and copies that an earlier run made and nobody changed since; not those that are `used`."""
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


def _link_or_copy(path: Path, at: Path, root: Path, copied: bool) -> None:
    """Put a file under another name: copy it or link to it, by a relative link if it lies in `root`."""
    at.parent.mkdir(parents=True, exist_ok=True)
    if copied:
        with atomic_path(at) as temporary:
            shutil.copyfile(path, temporary)
    else:
        at.symlink_to(os.path.relpath(path, at.parent.resolve()) if path.is_relative_to(root) else path)


def _entry(view: View, folder: Path, targets: dict[str, Path]) -> dict[str, Any]:
    """The entry of a view in scene.json; adds the links that it needs to `targets`."""
    camera, limits = view.camera, view.depth_range
    mask = view.mask_path if view.mask_path != view.image_path else None  # else, the photo's own transparency
    return {
        "name": view.name,
        "photo": _name_in(folder, view.image_path, "photos", view.name, targets),
        "original": (view.original_path or view.image_path).name,
        "width": camera.width,
        "height": camera.height,
        "K": camera.K.tolist(),
        "cam_from_world": camera.cam_from_world.tolist(),
        "depth_range": None if limits is None else [limits.near, limits.far],
        "sources": [[source.index, source.score] for source in view.sources],
        "mask": None if mask is None else _name_in(folder, mask, "masks", view.name, targets),
        "depth": _true_depth_in(folder, view),
        "depth_scale": view.depth_scale,
    }


def _true_depth_in(folder: Path, view: View) -> str | None:
    """The name of the true depth, if it lies in this folder; else only the run's depth maps count there."""
    root, path = folder.resolve(), (view.depth_path or Path("/")).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None


def _name_in(folder: Path, path: Path, part: str, name: str, targets: dict[str, Path]) -> str:
    """The name of a file below the folder; if it lies elsewhere or is named otherwise, a new link to it."""
    root, resolved = folder.resolve(), path.resolve()
    if resolved.is_relative_to(root) and resolved.stem == name:
        return resolved.relative_to(root).as_posix()
    link = (Path(part) / f"{name}{path.suffix}").as_posix()
    targets[link] = resolved
    return link


def recognise(folder: Path) -> bool:
    return read_record(folder / FILE).get("format") == _FORMAT


def read(folder: Path, options: ReadOptions) -> Scene:
    path = folder / FILE
    content = read_json(path, 1 << 28)
    allowed = AllowedFolders(folder, images=options.images)
    finder = MaskFinder(folder, folder / "photos", options.masks)
    views, warnings, new_index = list[View](), list[str](), dict[int, int]()
    try:
        for index, entry in enumerate(content["views"]):
            view = _view(path, entry, folder, allowed)
            if not is_file(view.image_path):
                warnings.append(
                    f"left out {printable(view.name)}: its photo {printable(entry['photo'])} is not there"
                )
                continue
            try:
                size = image_size(view.image_path)
            except FormatError as error:
                warnings.append(f"left out {printable(view.name)}: {error}")
                continue
            found = finder.find(view.image_path) if options.masks is not None else None
            new_index[index] = len(views)
            camera = view.camera.resized(*size)  # the photo may have been replaced by a smaller copy
            views.append(replace(view, camera=camera, mask_path=found or view.mask_path))
        sources = [_sources(content["views"][index], new_index) for index in new_index]
        name = str(content["name"])
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise FormatError(path, f"is not a scene of gbinet ({type(error).__name__}: {error})") from error
    if not views:
        raise SceneError(f"{folder}: none of its photos can be read; say where they are: --images DIR")
    with_sources = tuple(replace(view, sources=s) for view, s in zip(views, sources, strict=True))
    return Scene(name, "gbinet", folder, with_sources, warnings=tuple(warnings))


def _view(path: Path, entry: dict[str, Any], folder: Path, allowed: AllowedFolders) -> View:
    K, pose = (np.array(entry[key], dtype=np.float64) for key in ("K", "cam_from_world"))
    name, limits = str(entry["name"]), entry["depth_range"]
    camera = checked_camera(path, K, pose, (int(entry["width"]), int(entry["height"])), f"view {name}")
    mask, depth = (
        None if entry[key] is None else allowed.check(folder / str(entry[key])) for key in ("mask", "depth")
    )
    return View(
        name,
        camera,
        allowed.find_photo(folder, str(entry["photo"])),
        None if limits is None else DepthRange(float(limits[0]), float(limits[1])),
        mask_path=mask,
        depth_path=depth,
        depth_scale=float(entry["depth_scale"]),
    )


def _sources(entry: dict[str, Any], new_index: dict[int, int]) -> tuple[SourceView, ...]:
    """Source views among those that could be read; `new_index`: index in the file -> index in the scene."""
    pairs = [(int(index), float(score)) for index, score in entry["sources"]]
    return tuple(SourceView(new_index[index], score) for index, score in pairs if index in new_index)


KIND = Kind(
    "gbinet",
    "result of gbinet",
    FILE,
    recognise,
    read,
    folders=(*FOLDERS, "truth"),
)
