"""Helpers of the readers: checked cameras, orientation, photos and masks by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.camera import Camera
from gbinet.errors import FormatError, SceneError
from gbinet.formats.image import is_image_name

Array = NDArray[np.float64]

MASKS = ("masks", "mask")  # folders of masks beside the images


def checked_camera(
    path: Path, K: Array, cam_from_world: Array, size: tuple[int, int], position: str = ""
) -> Camera:
    """A Camera from numbers of a file, or a FormatError naming that file."""
    if not (np.isfinite(K).all() and np.isfinite(cam_from_world).all()):
        raise FormatError(path, "a camera holds a value that is not finite", position)
    lower = max(abs(K[1, 0]), abs(K[2, 0]), abs(K[2, 1]))  # below the diagonal
    if not (abs(K[2, 2]) > 1e-12 and lower <= 1e-6 * abs(K[2, 2])):
        raise FormatError(path, "the intrinsics are not a pinhole matrix (last row must be 0 0 1)", position)
    if np.abs(cam_from_world[3] - [0, 0, 0, 1]).max() > 1e-6:
        raise FormatError(path, "the last row of a pose must be 0 0 0 1", position)
    # The checks of Camera.check, on arrays: ten times faster, which matters with a thousand views.
    x, y, z = rotation = cam_from_world[:3, :3]
    if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-2:
        problem = "the rotation of a pose is not orthonormal (is it the inverse, or scaled?)"
        raise FormatError(path, problem, position)
    if np.dot(np.cross(x, y), z) < 0:
        raise FormatError(path, "a pose mirrors the world: its rotation has a negative determinant", position)
    if not (K[0, 0] / K[2, 2] > 0 and K[1, 1] / K[2, 2] > 0):
        raise FormatError(path, "a focal length is not positive", position)
    return Camera(torch.from_numpy(K / K[2, 2]), torch.from_numpy(cam_from_world.copy()), *size)


def turned_upright(camera: Camera, orientation: int) -> Camera:
    """The camera of the upright image, from the camera of the stored pixels (EXIF 1, 3, 6, 8)."""
    turn = {
        1: np.eye(3),
        3: np.diag([-1.0, -1.0, 1.0]),
        6: np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]),  # stored (x, y) goes to (height - y, x)
        8: np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]]),  # stored (x, y) goes to (y, width - x)
    }[orientation]
    width, height = (camera.height, camera.width) if orientation >= 5 else (camera.width, camera.height)
    shift = np.eye(3)
    shift[:2, 2] = np.maximum(-(turn[:2, :2] @ [camera.width, camera.height]), 0)
    turn_t = torch.from_numpy(turn)
    # Pixels turn by `shift @ turn`; the camera turns with them, so that K stays upper triangular.
    K = torch.from_numpy(shift) @ turn_t @ camera.K @ turn_t.mT
    pose = camera.cam_from_world.clone()
    pose[:3] = turn_t @ pose[:3]
    return replace(camera, K=K, cam_from_world=pose, width=width, height=height)


# ---- finding files -----------------------------------------------------------------------------------------


def images_by_stem(folder: Path) -> dict[str, Path]:
    """All images directly in a folder by the stem of their names; one listing, no stat per file."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise SceneError(f"{folder}: cannot be listed ({error.strerror})") from error
    return {path.stem: path for path in paths if is_image_name(path) and not is_mask_name(path)}


def is_mask_name(path: Path) -> bool:
    return path.stem.lower().endswith(("_mask", ".mask"))


class MaskFinder:
    """Finds the mask of an image: in the folder that was given, in `masks/` or `mask/`, or `*_mask.png`."""

    def __init__(self, root: Path, images: Path, given: Path | None) -> None:
        if given is not None and not given.is_dir():
            raise SceneError(f"{given}: there is no such folder of masks")
        folders = [given] if given else [*(root / name for name in MASKS), images.parent / "masks"]
        self.images = images
        # A set of names per folder: asking the file system for every spelling of every image is slow.
        self.names = {folder: _names_below(folder) for folder in dict.fromkeys(folders) if folder.is_dir()}
        beside = set() if given else _names_below(images)
        self.beside = {name for name in beside if is_mask_name(Path(name))}

    def find(self, image: Path) -> Path | None:
        if not self.names and not self.beside:
            return None
        relative = image.relative_to(self.images) if image.is_relative_to(self.images) else Path(image.name)
        stem = relative.with_suffix("").as_posix()
        # COLMAP appends .png to the whole name; others keep the name, or only the stem.
        spellings = [f"{relative.as_posix()}.png", relative.as_posix()]
        spellings += [f"{stem}{tail}" for tail in (".png", ".jpg", ".jpeg", "_mask.png", ".mask.png")]
        for folder, names in self.names.items():
            for name in spellings:
                if name in names:
                    return folder / name
        for tail in ("_mask.png", ".mask.png", "_mask.jpg"):
            if f"{stem}{tail}" in self.beside:
                return self.images / f"{stem}{tail}"
        return None


def _names_below(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    return {
        (Path(base) / name).relative_to(folder).as_posix()
        for base, _, names in os.walk(folder)
        for name in names
    }
