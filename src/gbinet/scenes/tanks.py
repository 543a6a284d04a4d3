"""Tanks and Temples as prepared for MVSNet: published scene lists, and where the files lie.

A scene is an MVSNet folder, `intermediate/Family` or `advanced/Temple`. The intermediate set is run with the
short-range cameras, which come as a separate archive of folders `cams_family`, `cams_francis` and so on: they
may lie in each scene's folder, or in the archive's own folder beside the scenes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gbinet.errors import SceneError
from gbinet.scene import Scene
from gbinet.scenes import mvsnet
from gbinet.scenes.kind import Kind, ReadOptions, split_named

INTERMEDIATE = ("Family", "Francis", "Horse", "Lighthouse", "M60", "Panther", "Playground", "Train")
ADVANCED = ("Auditorium", "Ballroom", "Courtroom", "Museum", "Palace", "Temple")
SPLITS = {"intermediate": INTERMEDIATE, "advanced": ADVANCED, "both": INTERMEDIATE + ADVANCED}

_ARCHIVE = "short_range_caemeras_for_mvsnet"  # spelt so by its authors
INTERVAL_SCALE = 1.0  # short-range cameras give `near interval`, for 256 planes


def scenes(split: str) -> tuple[str, ...]:
    return split_named("Tanks and Temples", SPLITS, split)


def load_set(root: str | Path, split: str) -> list[Scene]:
    return [load_scan(root, name) for name in scenes(split)]


def load_scan(root: str | Path, name: str) -> Scene:
    """A scene by its name; `root` holds `intermediate` and `advanced`, or the scenes themselves."""
    split = next((split for split, names in SPLITS.items() if name in names), "intermediate")
    folders = [Path(root) / split / name, Path(root) / name]
    folder = next((f for f in folders if f.is_dir()), None)
    if folder is None:
        raise SceneError(f"{root}: has no scene {name} (looked for {folders[0]} and {folders[1]})")
    return read(folder, ReadOptions())


def recognise(folder: Path) -> bool:
    return folder.name in SPLITS["both"] and mvsnet.recognise(folder)


def read(folder: Path, options: ReadOptions) -> Scene:
    short = folder.parent / _ARCHIVE / f"cams_{folder.name.lower()}"
    if options.interval_scale is None:
        options = replace(options, interval_scale=INTERVAL_SCALE)
    return mvsnet.read(folder, options, kind="tanks", cams=short if short.is_dir() else None)


KIND = Kind(
    "tanks",
    "Tanks and Temples scene",
    "a scene's name, e.g. Family, cams/*_cam.txt",
    recognise,
    read,
    folders=mvsnet.KIND.folders,
)
