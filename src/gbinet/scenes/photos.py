"""Folders of photos and nothing else. `gbinet reconstruct` finds their poses first (gbinet.scenes.sfm)."""

from __future__ import annotations

import re
from pathlib import Path

from gbinet.errors import SceneError
from gbinet.formats.image import is_image_name
from gbinet.scene import Scene
from gbinet.scenes.kind import Kind, ReadOptions
from gbinet.scenes.views import MASKS, is_mask_name

FRAME = "frame_{:04d}.jpg"  # frames of a video, as they are written; they follow each other


def is_frame_name(name: str) -> bool:
    return re.fullmatch(r"frame_\d{4,}\.jpg", name) is not None


def list_photos(folder: str | Path, *, subfolders: bool = False) -> list[Path]:
    """Photos in `folder` itself, or else in `folder/images`, by name; masks are left out.

    subfolders  photos of all folders in `folder` too
    """
    folder = Path(folder)
    if subfolders:
        inner = [p for p in sorted(folder.glob("*/")) if p.name[0] != "." and p.name not in MASKS]
        return [photo for part in (folder, *inner) for photo in _photos_in(part)]
    return _photos_in(folder) or _photos_in(folder / "images")


def _photos_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [p for p in sorted(folder.iterdir()) if is_image_name(p) and not is_mask_name(p)]


def recognise(folder: Path) -> bool:
    return bool(list_photos(folder))


def read(folder: Path, options: ReadOptions) -> Scene:
    raise SceneError(
        f"{folder}: {len(list_photos(folder))} photos without camera poses. `gbinet reconstruct` finds "
        "them first (structure from motion); or put a COLMAP model, transforms.json or MVSNet cams with them"
    )


KIND = Kind(
    "photos",
    "bare photos",
    "in the folder or in images/",
    recognise,
    read,
    posed=False,
    folders=("images",),
)
