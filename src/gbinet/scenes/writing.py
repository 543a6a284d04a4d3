"""What all writers of scenes share: photos and masks into a folder, under safe names."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from gbinet.errors import InputError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.image import read_header, read_image, read_mask, write_image
from gbinet.scene import Scene, View


def safe_name(view: View) -> str:
    """The view's name as a relative path, or an InputError: names come from files and may try to escape."""
    path = PurePosixPath(view.name)
    printable = view.name.isprintable() and "\\" not in view.name
    if path.is_absolute() or ".." in path.parts or not path.parts or not printable:
        raise InputError(f"the view name '{view.name}' is not a usable file name")
    return view.name


def copy_image(view: View, folder: Path, stem: str) -> Path:
    """The photo as the view's camera sees it, under a new name; copied where every reader sees it alike."""
    header = read_header(view.image_path)
    suffix = view.image_path.suffix.lower()
    if suffix in (".jpg", ".jpeg", ".png") and header.orientation == 1 and not header.has_alpha:
        target = folder / f"{stem}{suffix}"
        with atomic_path(target) as temporary:
            shutil.copyfile(view.image_path, temporary)
        return target
    return write_image(folder / f"{stem}.png", read_image(view.image_path))


def copy_mask(view: View, target: Path) -> Path | None:
    """The mask as a PNG of 0 and 255, if the view has one."""
    if view.mask_path is None:
        return None
    mask = read_mask(view.mask_path, (view.camera.width, view.camera.height))
    return write_image(target, mask)


def copy_images(scene: Scene, folder: Path) -> list[str]:
    """Copy all photos into `folder/images`; their names below it."""
    images = folder / "images"
    return [copy_image(v, images, safe_name(v)).relative_to(images).as_posix() for v in scene.views]


def index_by_name(views: Iterable[View]) -> dict[str, int]:
    return {view.name: index for index, view in enumerate(views)}
