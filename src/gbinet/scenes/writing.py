"""What all writers of scenes share: photos, masks and depth maps into a folder, under safe names."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gbinet.depthmap import DepthMap
from gbinet.errors import InputError, SceneError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.image import read_header, read_image, read_mask, write_image
from gbinet.scene import DepthRange, View

Array = np.ndarray[Any, Any]
DepthMaps = Iterable[tuple[View, DepthMap]]  # one at a time: all depth maps of a scene need not fit in memory


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


def range_of(view: View) -> DepthRange:
    if view.depth_range is None:
        raise SceneError(f"view {view.name} has no depth range, which this format needs; give one")
    return view.depth_range


def pinhole_parameters(view: View) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy; formats that know only these cannot hold a skewed camera."""
    K = view.camera.K.double()
    if abs(float(K[0, 1])) > 1e-6 * float(K[0, 0]):
        raise InputError(f"the camera of view {view.name} is skewed, which this format cannot express")
    return float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])


def index_by_name(views: Iterable[View]) -> dict[str, int]:
    return {view.name: index for index, view in enumerate(views)}


def matrix_rows(matrix: Any) -> str:
    """Rows of numbers that read back exactly."""
    return "\n".join(" ".join(repr(float(value)) for value in row) for row in matrix.tolist())
