"""COLMAP models: `sparse/0`, `sparse` or the folder itself, with the images beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gbinet.errors import FormatError, SceneError
from gbinet.formats.colmap import ColmapImage, ColmapModel, is_model, read_model
from gbinet.formats.inside import Inside
from gbinet.formats.reading import is_file
from gbinet.names import shown
from gbinet.scene import Scene, SparsePoints, View
from gbinet.scenes.posed import PosedPhoto, unique_names, view_of
from gbinet.scenes.undistort import Photo, Undistorter
from gbinet.scenes.views import MaskFinder

Progress = Callable[[int, int, str], None]

_PLACES = ("sparse/0", "sparse", ".", "dense/sparse", "colmap/sparse/0", "dense/0/sparse")


def model_folder(folder: Path) -> Path | None:
    """Where the model lies: the first of the usual places."""
    return next((folder / place for place in _PLACES if is_model(folder / place)), None)


def load_colmap(
    folder: Path,
    *,
    images: Path | None = None,
    masks: Path | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Scene:
    warnings: list[str] = []
    place = model_folder(folder)
    if place is None:
        raise SceneError(f"{folder}: holds no COLMAP model (looked in {', '.join(_PLACES)})")
    others = [p.name for p in sorted(place.parent.glob("*/")) if p != place and is_model(p)]
    if place.name.isdigit() and others:
        warnings.append(
            f"the reconstruction is in {len(others) + 1} parts; only {place.name} is used (also: {others})"
        )
    model = read_model(place)
    if not model.images:
        raise SceneError(f"{place}: the model holds no images; its reconstruction failed")
    images_at = _images_folder(folder, place, [image.name for image in model.images], images)
    inside = Inside(folder, images_at, images=images)
    finder = MaskFinder(folder, images_at, masks)
    undistorter = Undistorter(folder, cache)
    views: list[View] = []
    kept: list[ColmapImage] = []
    names = unique_names([image.name for image in model.images])
    for index, (name, image) in enumerate(zip(names, model.images, strict=True)):
        path = images_at / image.name
        lens = model.cameras[image.camera_id]
        if progress is not None and lens.distorted:
            progress(index, len(names), "undistorting")
        try:
            path = inside.find_photo(images_at, image.name)
            posed = PosedPhoto(name, Photo(path, finder.find(path)), lens, image.cam_from_world, place)
            views.append(view_of(posed, undistorter, warnings))
        except FormatError as error:
            if error.path != path:
                raise
            warnings.append(f"left out {shown(image.name)}: {error}")  # one broken photo costs one view
            continue
        kept.append(image)
    undistorter.remember()
    if not views:
        raise SceneError(f"{images_at}: none of the {len(names)} images can be read; {warnings[0]}")
    points = sparse_points(model, kept)
    return Scene(folder.resolve().name, "colmap", folder, tuple(views), points, tuple(warnings))


def sparse_points(model: ColmapModel, images: list[ColmapImage]) -> SparsePoints | None:
    """The model's points with tracks in terms of these images; observations by others are dropped."""
    points = model.points
    if len(points.xyz) == 0:
        return None
    ids = np.array([image.id for image in images], dtype=np.int64)
    order = np.argsort(ids)
    slot = np.minimum(np.searchsorted(ids, points.image_ids, sorter=order), len(ids) - 1)  # [T]
    view = order[slot]
    known = ids[view] == points.image_ids
    before = np.concatenate([[0], np.cumsum(known)])  # [T + 1] known observations before each
    return SparsePoints(
        torch.from_numpy(points.xyz),
        torch.from_numpy(points.rgb),
        torch.from_numpy(view[known]),
        torch.from_numpy(before[points.track_start]),
    )


def _images_folder(folder: Path, model: Path, names: list[str], given: Path | None) -> Path:
    """The folder that the model's image names are relative to: the given one, or the first that has any."""
    if given is not None:
        return given
    places = [
        folder / "images",
        folder,
        model.parent / "images",
        model.parent.parent / "images",
        model.parent,
    ]
    for place in places:
        if any(is_file(place / name) for name in names):
            return place
    raise SceneError(
        f"{model}: its images are not there (looked for {names[0]} and the others in "
        f"{', '.join(str(p) for p in dict.fromkeys(places))}); "
        f"put them into {folder / 'images'}, or say where they are: --images DIR"
    )
