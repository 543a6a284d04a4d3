"""One posed photo of a possibly distorted camera -> View. Shared by COLMAP and nerfstudio scenes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError, SceneError
from gbinet.formats.colmap import ColmapCamera
from gbinet.formats.image import read_header
from gbinet.names import distinct_stems, printable
from gbinet.scene import View
from gbinet.scenes.kind import ReadOptions
from gbinet.scenes.undistort import Photo, Undistorter
from gbinet.scenes.views import checked_camera, turned_upright


@dataclass(frozen=True)
class PosedPhoto:
    """A photo with its camera, as a model file gives them."""

    name: str  # of the view to be
    photo: Photo
    lens: ColmapCamera  # may have been made for a larger copy of the image
    cam_from_world: NDArray[np.float64]  # [4, 4]
    source: Path  # the file that gives the camera, for messages


def _view(posed: PosedPhoto, undistorter: Undistorter, warnings: list[str]) -> View:
    """The view of the image as read_image returns it: upright, without distortion.

    COLMAP and nerfstudio ignore EXIF orientation: their cameras belong to the pixels as stored, unless only
    the size of the upright image fits.
    """
    photo = posed.photo
    header = read_header(photo.image)
    if header.has_alpha and photo.mask is None:
        photo = Photo(photo.image, photo.image, photo.depth, photo.depth_scale)
    is_stored = (
        header.orientation == 1
        or not _same_shape(posed.lens, header.size)
        or _same_shape(posed.lens, header.stored_size)
    )
    size = header.stored_size if is_stored else header.size
    lens = _fitted(posed, size, warnings)
    # A mirrored photo stays as it is stored: its pose belongs to a mirrored world.
    mirrored = is_stored and header.orientation in (2, 4, 5, 7)
    turn = header.orientation if is_stored and not mirrored else 1
    K = lens.K
    if lens.distorted or mirrored or (turn != 1 and (photo.mask or photo.depth)):
        photo, pinhole = undistorter.rewrite(posed.name, photo, lens, stored=is_stored, turn=turn)
        K, size = pinhole.K, (pinhole.width, pinhole.height)
    camera = turned_upright(checked_camera(posed.source, K, posed.cam_from_world, size, posed.name), turn)
    return View(
        posed.name,
        camera,
        photo.image,
        mask_path=photo.mask,
        depth_path=photo.depth,
        depth_scale=photo.depth_scale,
        original_path=None if photo.image == posed.photo.image else posed.photo.image,
    )


def views_of(
    model: Path,
    paths: list[str],
    posed: Callable[[int, str], PosedPhoto],
    folder: Path,
    options: ReadOptions,
    warnings: list[str],
) -> dict[int, View]:
    """The views of the photos that a model file names, by their number there; a broken photo costs its view.

    posed   gives the photo of a number and a name for its view
    folder  of the scene: the cache of undistorted photos is there unless `options` name another
    """
    undistorter = Undistorter(folder, options.cache)
    views = {}
    for index, (name, path) in enumerate(zip(unique_names(paths), paths, strict=True)):
        try:
            photo = posed(index, name)
            if options.progress is not None and photo.lens.distorted:
                options.progress(index, len(paths), "undistorting")
            views[index] = _view(photo, undistorter, warnings)
        except FormatError as error:
            if error.path == model:
                raise
            warnings.append(f"left out {printable(path)}: {error}")
    undistorter.save_hashes()
    if not views:
        raise SceneError(f"{model}: none of its {len(paths)} images can be read; {warnings[0]}")
    return views


def _fitted(posed: PosedPhoto, size: tuple[int, int], warnings: list[str]) -> ColmapCamera:
    """The lens for the image as it lies on disk, which may be a smaller copy."""
    lens = posed.lens
    if (lens.width, lens.height) == size:
        return lens
    if not _same_shape(lens, size):
        raise SceneError(
            f"{posed.photo.image}: is {size[0]}x{size[1]}, its camera in {posed.source} was made for "
            f"{lens.width}x{lens.height}; give the images that the cameras belong to"
        )
    warnings.append(f"images are resized copies: {size[0]}x{size[1]}, cameras say {lens.width}x{lens.height}")
    return lens.resized(*size)


def _same_shape(lens: ColmapCamera, size: tuple[int, int]) -> bool:
    """Whether the image may be a resized copy: equal aspect up to the rounding of both sizes."""
    width, height = size
    return abs(width * lens.height - height * lens.width) <= max(*size, lens.width, lens.height)


def unique_names(paths: list[str]) -> list[str]:
    """A name for each image path that is unique and can be a file's stem: `left/01.jpg` -> `left_01`.

    Folders that all of them share are left out.
    """
    parts = [[p for p in path.replace("\\", "/").split("/") if p not in ("", ".", "..")] for path in paths]
    columns = zip(*(folders[:-1] for folders in parts), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    flat = ["_".join(folders[shared:]) or "image" for folders in parts]
    stems = [Path(name).stem or name for name in flat]
    counts = Counter(stems)
    return distinct_stems(
        stem if counts[stem] == 1 else whole.replace(".", "_")
        for stem, whole in zip(stems, flat, strict=True)
    )
