"""Folders in MVSNet's layout: `images/`, `cams/` (or `cams_1/`), `pair.txt`; BlendedMVS is one of them.

Written with views numbered in the scene's order; depth maps become `depths/%08d.pfm`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gbinet.errors import FormatError, InputError, SceneError
from gbinet.formats.atomic import write_text
from gbinet.formats.depth_files import write_depth
from gbinet.formats.image import ImageHeader, read_header
from gbinet.formats.mvsnet import CamFile, cam_text, pair_text, read_cam, read_pairs
from gbinet.formats.reading import is_file
from gbinet.names import printable
from gbinet.pointcloud import PointCloud
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes.kind import DepthMaps, Kind, ReadOptions, Writer
from gbinet.scenes.views import MaskFinder, checked_camera, images_by_stem
from gbinet.scenes.writing import copy_image, copy_mask, index_by_name

# For the far end, where a cam file has only `near interval`. DTU as it is usually tested: 425 to 935 mm.
INTERVAL_SCALE = 0.8
PLANES = 256

_CAM_NAME = re.compile(r"(.+)_cam\.txt")
DEPTH_FOLDERS = ("depths", "depth", "rendered_depth_maps", "depth_gt")
_DEPTH_SUFFIXES = (".pfm", ".npz", ".png", ".tiff", ".tif")


def recognise(folder: Path) -> bool:
    return cams_folder(folder) is not None


def cams_folder(folder: Path) -> Path | None:
    """Where the cameras lie. Short-range cameras (Tanks and Temples: cams_train, cams_1) come first."""
    for name in (f"cams_{folder.name.lower()}", "cams_1", "cams"):
        cams = folder / name
        if cams.is_dir() and next(cams.glob("*_cam.txt"), None) is not None:
            return cams
    return None


# ---- reading -----------------------------------------------------------------------------------------------


def read(
    folder: Path,
    options: ReadOptions,
    *,
    kind: str = "mvsnet",
    photos: str = "images",
    cams: Path | None = None,
    same_size: bool = False,
) -> Scene:
    """The scene as the files give it. Views whose cam file holds no usable range have none.

    photos     the folder of photos in the scene's folder; where it is absent, the other kind's is taken
    cams       the folder of cameras, where it is not in the scene's folder
    same_size  all images are known to be alike, so only the first header is read (large training sets)
    """
    images_at = options.images or _photos_folder(folder, photos)
    cams = cams or cams_folder(folder)
    if cams is None:
        raise SceneError(f"{folder}: has no cameras (cams/%08d_cam.txt); is this an MVSNet folder?")
    if not images_at.is_dir():
        raise SceneError(
            f"{folder}: has cameras in {cams.name}/, but there is no folder {images_at}; "
            "put the photos there, or say where they are: --images DIR"
        )
    images, warnings = images_by_stem(images_at), list[str]()
    named = [(path, match[1]) for path in sorted(cams.iterdir()) if (match := _CAM_NAME.fullmatch(path.name))]
    masks, depths = MaskFinder(folder, images_at, options.masks), _depths_by_stem(folder)
    views: list[View] = []
    header: ImageHeader | None = None
    for path, stem in named:
        image = images.get(stem)
        if image is None:
            continue
        try:
            header = header if header and same_size else read_header(image)
        except FormatError as error:
            warnings.append(f"left out {printable(stem)}: {error}")
            continue
        cam = read_cam(path)
        camera = checked_camera(path, cam.K, cam.cam_from_world, header.size)
        mask = masks.find(image) or (image if header.has_alpha else None)
        view = View(stem, camera, image, mask_path=mask, depth_path=depths.get(stem))
        views.append(_with_range(view, cam, options.interval_scale, warnings))
    warnings += _unmatched(set(images), {stem for _, stem in named})
    if not views:
        raise SceneError(f"{folder}: no camera in {cams.name}/ has an image in {images_at.name}/")
    found = _with_pairs(views, _pair_file(folder, cams), warnings)
    return Scene(folder.name, kind, folder, found, warnings=tuple(warnings))


def _photos_folder(folder: Path, wanted: str) -> Path:
    """The wanted folder, or that of the other layout: `--kind` may name either of them."""
    found = (folder / name for name in (wanted, "images", "blended_images"))
    return next((photos for photos in found if photos.is_dir()), folder / wanted)


def _unmatched(images: set[str], cams: set[str]) -> list[str]:
    """Warnings about cameras without an image, and images without a camera."""
    missing = sorted(cams - images)
    unposed = sorted(stem for stem in images - cams if not stem.endswith("_masked"))  # BlendedMVS
    texts = []
    if missing:
        texts.append(f"{len(missing)} cameras have no image (first: {printable(missing[0])}); left out")
    if unposed:
        texts.append(f"{len(unposed)} photos have no camera file (first: {printable(unposed[0])}); left out")
    return texts


def _with_range(view: View, cam: CamFile, interval_scale: float | None, warnings: list[str]) -> View:
    try:
        return replace(view, depth_range=cam_range(cam, interval_scale))
    except InputError as error:  # happens in BlendedMVS: a few near ends are not positive
        warnings.append(f"{printable(view.name)}: the range in its cam file is unusable ({error})")
        return view


def cam_range(cam: CamFile, interval_scale: float | None = None) -> DepthRange:
    return DepthRange(cam.near, cam.far(INTERVAL_SCALE if interval_scale is None else interval_scale, PLANES))


def _with_pairs(views: list[View], path: Path | None, warnings: list[str]) -> tuple[View, ...]:
    """The views with the sources that pair.txt lists; sources that are not in the scene are dropped."""
    if path is None:
        return tuple(views)
    numbers = {int(view.name): index for index, view in enumerate(views) if view.name.isdigit()}
    pairs = read_pairs(path)
    for number, sources in pairs.items():
        if number not in numbers:
            continue
        index = numbers[number]
        known = [SourceView(numbers[n], s) for n, s in sources if n in numbers and numbers[n] != index]
        views[index] = replace(views[index], sources=tuple(known))
    absent = [number for number in pairs if number not in numbers]
    if absent:
        warnings.append(f"{path.name} lists {len(absent)} views that are not here (first: {absent[0]})")
    return tuple(views)


def _pair_file(folder: Path, cams: Path) -> Path | None:
    return next((p for p in (folder / "pair.txt", cams / "pair.txt") if is_file(p)), None)


def _depths_by_stem(folder: Path) -> dict[str, Path]:
    depths = next((folder / name for name in DEPTH_FOLDERS if (folder / name).is_dir()), None)
    files = [] if depths is None else sorted(depths.iterdir())
    return {p.stem: p for p in files if p.suffix.lower() in _DEPTH_SUFFIXES}


# ---- writing -----------------------------------------------------------------------------------------------


def write(scene: Scene, folder: Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None) -> Path:
    for number, view in enumerate(scene.views):
        copy_image(view, folder / "images", f"{number:08d}")
        copy_mask(view, folder / "masks" / f"{number:08d}.png")
        write_text(folder / "cams" / f"{number:08d}_cam.txt", cam_text(view))
    write_text(folder / "pair.txt", pair_text(scene.views))
    numbers = index_by_name(scene.views)
    for view, depth_map in depth_maps:
        path = folder / "depths" / f"{numbers[view.name]:08d}.pfm"
        write_depth(path, depth_map.depth, made_by=depth_map.made_by)
    return folder


KIND = Kind(
    "mvsnet",
    "MVSNet folder",
    "cams/*_cam.txt",
    recognise,
    read,
    (Writer("mvsnet", write),),
    folders=("images", "masks", "mask", "cams*", *DEPTH_FOLDERS),
)
