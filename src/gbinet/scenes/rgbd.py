"""RGB-D folders: `images/`, `depth/` (16-bit PNG, millimetres), `K.txt`, `poses.txt` (camera to world)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gbinet.errors import FormatError, SceneError
from gbinet.formats.image import read_header
from gbinet.formats.rgbd import read_intrinsics, read_poses
from gbinet.names import printable
from gbinet.scene import Scene, View
from gbinet.scenes.kind import Kind, ReadOptions
from gbinet.scenes.views import MaskFinder, checked_camera, images_by_stem

_DEPTH_SCALE = 0.001  # stored millimetres -> metres, the unit of the poses


def recognise(folder: Path) -> bool:
    return all((folder / name).exists() for name in ("images", "K.txt", "poses.txt"))


def read(folder: Path, options: ReadOptions) -> Scene:
    images_at = options.images or folder / "images"
    photos = images_by_stem(images_at)
    K = read_intrinsics(folder / "K.txt")
    poses = read_poses(folder / "poses.txt")  # [V, 4, 4] world_from_cam
    if len(poses) != len(photos):
        raise SceneError(
            f"{folder / 'poses.txt'} holds {len(poses)} poses, {images_at} holds {len(photos)} images; "
            "there must be one line per image, in name order"
        )
    depths = images_by_stem(folder / "depth") if (folder / "depth").is_dir() else {}
    finder = MaskFinder(folder, images_at, options.masks)
    views: list[View] = []
    warnings: list[str] = []
    for row, (stem, image) in enumerate(photos.items()):
        if not np.isfinite(poses[row]).all():
            warnings.append(f"left out {printable(stem)}: its pose is not finite (tracking was lost)")
            continue
        try:
            header = read_header(image)
        except FormatError as error:
            warnings.append(f"left out {printable(stem)}: {error}")
            continue
        position = f"line {row + 1}"
        try:
            pose = np.linalg.inv(poses[row])
        except np.linalg.LinAlgError as error:
            raise FormatError(folder / "poses.txt", "a pose cannot be inverted", position) from error
        camera = checked_camera(folder / "poses.txt", K, pose, header.size, position)
        mask = finder.find(image) or (image if header.has_alpha else None)
        views.append(
            View(stem, camera, image, mask_path=mask, depth_path=depths.get(stem), depth_scale=_DEPTH_SCALE)
        )
    if not views:
        raise SceneError(f"{folder}: no image has a usable pose")
    return Scene(folder.name, "rgbd", folder, tuple(views), warnings=tuple(warnings))


KIND = Kind(
    "rgbd",
    "RGB-D folder",
    "images, K.txt, poses.txt",
    recognise,
    read,
    tracked=True,
    folders=("images", "depth", "masks", "mask"),
)
