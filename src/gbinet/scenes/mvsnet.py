"""Folders in MVSNet's layout: `images/`, `cams/` (or `cams_1/`), `pair.txt`; BlendedMVS is one of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gbinet.errors import FormatError, InputError, SceneError
from gbinet.formats.image import ImageHeader, read_header
from gbinet.formats.mvsnet import CamFile, read_cam, read_pairs
from gbinet.formats.reading import is_file
from gbinet.names import shown
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes.views import MaskFinder, checked_camera, images_by_stem

# The far end where a cam file says only `near interval`. DTU as everybody tests it: 425 to 935 mm.
INTERVAL_SCALE = 0.8
PLANES = 256

_CAM_NAME = re.compile(r"(.+)_cam\.txt")
DEPTH_FOLDERS = ("depths", "depth", "rendered_depth_maps", "depth_gt")
_DEPTH_SUFFIXES = (".pfm", ".npz", ".png", ".tiff", ".tif")


def is_mvsnet(folder: Path) -> bool:
    return cams_folder(folder) is not None


def cams_folder(folder: Path) -> Path | None:
    """Where the cameras lie. Short-range cameras (Tanks and Temples: cams_train, cams_1) come first."""
    for name in (f"cams_{folder.name.lower()}", "cams_1", "cams"):
        place = folder / name
        if place.is_dir() and next(place.glob("*_cam.txt"), None) is not None:
            return place
    return None


def load_mvsnet(
    folder: Path,
    *,
    images: Path | None = None,
    masks: Path | None = None,
    cams: Path | None = None,
    interval_scale: float = INTERVAL_SCALE,
    planes: int = PLANES,
    same_size: bool = False,
) -> Scene:
    """The scene as the files give it. Views whose cam file holds no usable range have none.

    same_size: all images are known to be alike, so only the first header is read (large training sets).
    """
    blended = (folder / "blended_images").is_dir()
    images_at = images or folder / ("blended_images" if blended else "images")
    cams = cams or cams_folder(folder)
    if cams is None:
        raise SceneError(f"{folder}: has no cameras (cams/%08d_cam.txt); is this an MVSNet folder?")
    if not images_at.is_dir():
        raise SceneError(
            f"{folder}: has cameras in {cams.name}/, but there is no folder {images_at}; "
            "put the photos there, or say where they are: --images DIR"
        )
    photos = images_by_stem(images_at)
    finder = MaskFinder(folder, images_at, masks)
    depths = _depths_by_stem(folder)
    warnings: list[str] = []
    views: list[View] = []
    numbers: dict[int, int] = {}  # number in file names -> index of the view
    stems: set[str] = set()  # of all cam files
    missing: list[str] = []
    shared: ImageHeader | None = None
    for cam_path in sorted(cams.iterdir()):
        match = _CAM_NAME.fullmatch(cam_path.name)
        if match is None:
            continue
        stem = match[1]
        stems.add(stem)
        image = photos.get(stem)
        if image is None:
            missing.append(stem)
            continue
        try:
            header = shared or read_header(image)
            shared = header if same_size else None
        except FormatError as error:
            warnings.append(f"left out {shown(stem)}: {error}")
            continue
        cam = read_cam(cam_path)
        camera = checked_camera(cam_path, cam.K, cam.cam_from_world, header.size)
        mask = finder.find(image) or (image if header.has_alpha else None)
        if stem.isdigit():
            numbers[int(stem)] = len(views)
        views.append(View(stem, camera, image, mask_path=mask, depth_path=depths.get(stem)))
        views[-1] = _with_range(views[-1], cam, interval_scale, planes, warnings)
    if missing:
        warnings.append(f"{len(missing)} cameras have no image (first: {shown(missing[0])}); left out")
    without = sorted(stem for stem in set(photos) - stems if not stem.endswith("_masked"))  # BlendedMVS
    if without:
        warnings.append(f"{len(without)} photos have no camera file (first: {shown(without[0])}); left out")
    if not views:
        raise SceneError(f"{folder}: no camera in {cams.name}/ has an image in {images_at.name}/")
    found = with_pairs(tuple(views), numbers, _pair_file(folder, cams), warnings)
    return Scene(folder.name, "blendedmvs" if blended else "mvsnet", folder, found, warnings=tuple(warnings))


def _with_range(view: View, cam: CamFile, interval_scale: float, planes: int, warnings: list[str]) -> View:
    try:
        return replace(view, depth_range=cam_range(cam, interval_scale, planes))
    except InputError as error:  # happens in BlendedMVS: a few near ends are not positive
        warnings.append(f"{shown(view.name)}: the range in its cam file is unusable ({error})")
        return view


def cam_range(cam: CamFile, interval_scale: float = INTERVAL_SCALE, planes: int = PLANES) -> DepthRange:
    return DepthRange(cam.near, cam.far(interval_scale, planes))


def with_pairs(
    views: tuple[View, ...], numbers: dict[int, int], path: Path | None, warnings: list[str]
) -> tuple[View, ...]:
    """The views with the sources that pair.txt lists; sources that are not in the scene are dropped."""
    if path is None:
        return views
    pairs = read_pairs(path)
    result = list(views)
    for number, sources in pairs.items():
        if number not in numbers:
            continue
        index = numbers[number]
        known = [SourceView(numbers[n], s) for n, s in sources if n in numbers and numbers[n] != index]
        result[index] = replace(views[index], sources=tuple(known))
    absent = [number for number in pairs if number not in numbers]
    if absent:
        warnings.append(f"{path.name} lists {len(absent)} views that are not here (first: {absent[0]})")
    return tuple(result)


def _pair_file(folder: Path, cams: Path) -> Path | None:
    return next((p for p in (folder / "pair.txt", cams / "pair.txt") if is_file(p)), None)


def _depths_by_stem(folder: Path) -> dict[str, Path]:
    for name in DEPTH_FOLDERS:
        place = folder / name
        if place.is_dir():
            return {p.stem: p for p in sorted(place.iterdir()) if p.suffix.lower() in _DEPTH_SUFFIXES}
    return {}
