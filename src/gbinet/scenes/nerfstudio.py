"""nerfstudio and instant-ngp folders: `transforms.json` and the images that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gbinet.errors import FormatError, SceneError
from gbinet.formats.image import is_image_name, read_header
from gbinet.formats.inside import Inside
from gbinet.formats.nerfstudio import read_transforms
from gbinet.formats.ply import read_ply
from gbinet.formats.reading import is_file
from gbinet.names import shown
from gbinet.scene import Scene, SparsePoints, View
from gbinet.scenes.posed import PosedPhoto, unique_names, view_of
from gbinet.scenes.undistort import Photo, Undistorter
from gbinet.scenes.views import MaskFinder

_NAMES = ("transforms.json", "transforms_train.json")
_DEPTH_SCALE = 0.001  # nerfstudio's default: stored millimetres, metres in the scene


def transforms_file(folder: Path) -> Path | None:
    return next((folder / name for name in _NAMES if is_file(folder / name)), None)


def load_nerfstudio(
    folder: Path,
    *,
    images: Path | None = None,
    masks: Path | None = None,
    cache: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Scene:
    path = transforms_file(folder)
    if path is None:
        raise SceneError(f"{folder}: has no transforms.json")
    transforms = read_transforms(path)
    if not transforms.frames:
        raise SceneError(f"{path}: its list of frames is empty")
    warnings: list[str] = []
    undistorter = Undistorter(folder, cache)
    finder = MaskFinder(folder, images or folder / "images", masks)
    inside = Inside(folder, images=images)
    scale = _DEPTH_SCALE if transforms.depth_scale is None else transforms.depth_scale
    views: list[View] = []
    names = unique_names([frame.file_path for frame in transforms.frames])
    for index, (name, frame) in enumerate(zip(names, transforms.frames, strict=True)):
        try:
            image = _image(inside, folder, frame.file_path)
            header = read_header(image)
            mask = None if masks else _existing(inside, folder, frame.mask_path, warnings)
            depth = _existing(inside, folder, frame.depth_path, warnings)
            lens = frame.lens(header.stored_size)
            if progress is not None and lens.distorted:
                progress(index, len(names), "undistorting")
            photo = Photo(image, mask or finder.find(image), depth, scale)
            posed = PosedPhoto(name, photo, lens, frame.cam_from_world, path)
            views.append(view_of(posed, undistorter, warnings))
        except FormatError as error:
            if error.path == path:
                raise
            warnings.append(f"left out {shown(frame.file_path)}: {error}")
    undistorter.remember()
    if not views:
        raise SceneError(f"{path}: none of its {len(names)} images can be read; {warnings[0]}")
    points = _points(inside, folder, transforms.ply_file_path, warnings)
    return Scene(folder.resolve().name, "nerfstudio", folder, tuple(views), points, tuple(warnings))


def _image(inside: Inside, folder: Path, file_path: str) -> Path:
    """Blender-style files name images without a suffix."""
    endings = ("",) if is_image_name(Path(file_path)) else (".png", ".jpg", ".jpeg", "")
    paths = [inside.find_photo(folder, f"{file_path}{ending}") for ending in endings]
    return next((path for path in paths if is_file(path)), paths[-1])


def _existing(inside: Inside, folder: Path, name: str | None, warnings: list[str]) -> Path | None:
    if name is None:
        return None
    try:
        path = inside.check(folder / name)
    except FormatError as error:
        warnings.append(str(error))
        return None
    if is_file(path):
        return path
    warnings.append(f"{shown(name)} is named in transforms.json, but is not there")
    return None


def _points(inside: Inside, folder: Path, name: str | None, warnings: list[str]) -> SparsePoints | None:
    if name is None:
        return None
    try:
        cloud = read_ply(inside.check(folder / name))
    except FormatError as error:
        warnings.append(f"its point cloud is not used: {error}")
        return None
    return SparsePoints(cloud.xyz.double(), cloud.rgb) if len(cloud) else None
