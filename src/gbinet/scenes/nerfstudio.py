"""nerfstudio and instant-ngp folders: `transforms.json` and the images that it names.

Written with depth maps, masks and a point cloud where there are any.
"""

from __future__ import annotations

from pathlib import Path

from gbinet.errors import FormatError, SceneError
from gbinet.formats.allowed_folders import AllowedFolders
from gbinet.formats.depth_files import write_depth
from gbinet.formats.image import is_image_name, read_header
from gbinet.formats.nerfstudio import DEPTH_SCALE, frame_entry, read_transforms, write_transforms
from gbinet.formats.ply import read_ply, write_ply
from gbinet.formats.reading import is_file
from gbinet.names import printable
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene, SparsePoints
from gbinet.scenes.kind import DepthMaps, Kind, ReadOptions, Writer
from gbinet.scenes.posed import PosedPhoto, views_of
from gbinet.scenes.undistort import Photo
from gbinet.scenes.views import MaskFinder
from gbinet.scenes.writing import copy_image, copy_mask, index_by_name, safe_name

_NAMES = ("transforms.json", "transforms_train.json")


def recognise(folder: Path) -> bool:
    return transforms_file(folder) is not None


def transforms_file(folder: Path) -> Path | None:
    return next((folder / name for name in _NAMES if is_file(folder / name)), None)


# ---- reading -----------------------------------------------------------------------------------------------


def read(folder: Path, options: ReadOptions) -> Scene:
    path = transforms_file(folder)
    if path is None:
        raise SceneError(f"{folder}: has no transforms.json")
    transforms = read_transforms(path)
    if not transforms.frames:
        raise SceneError(f"{path}: its list of frames is empty")
    warnings: list[str] = []
    masks = MaskFinder(folder, options.images or folder / "images", options.masks)
    allowed = AllowedFolders(folder, images=options.images)
    scale = DEPTH_SCALE if transforms.depth_scale is None else transforms.depth_scale

    def posed(index: int, name: str) -> PosedPhoto:
        frame = transforms.frames[index]
        image = _image(allowed, folder, frame.file_path)
        lens = frame.lens(read_header(image).stored_size)
        mask = None if options.masks else _existing(allowed, folder, frame.mask_path, warnings)
        depth = _existing(allowed, folder, frame.depth_path, warnings)
        photo = Photo(image, mask or masks.find(image), depth, scale)
        return PosedPhoto(name, photo, lens, frame.cam_from_world, path)

    names = [frame.file_path for frame in transforms.frames]
    views = tuple(views_of(path, names, posed, folder, options, warnings).values())
    points = _points(allowed, folder, transforms.ply_file_path, warnings)
    return Scene(folder.resolve().name, "nerfstudio", folder, views, points, tuple(warnings))


def _image(allowed: AllowedFolders, folder: Path, file_path: str) -> Path:
    """Blender-style files name images without a suffix."""
    endings = ("",) if is_image_name(Path(file_path)) else (".png", ".jpg", ".jpeg", "")
    paths = [allowed.find_photo(folder, f"{file_path}{ending}") for ending in endings]
    return next((path for path in paths if is_file(path)), paths[-1])


def _existing(allowed: AllowedFolders, folder: Path, name: str | None, warnings: list[str]) -> Path | None:
    if name is None:
        return None
    try:
        path = allowed.check(folder / name)
    except FormatError as error:
        warnings.append(str(error))
        return None
    if is_file(path):
        return path
    warnings.append(f"{printable(name)} is named in transforms.json, but is not there")
    return None


def _points(
    allowed: AllowedFolders, folder: Path, name: str | None, warnings: list[str]
) -> SparsePoints | None:
    if name is None:
        return None
    try:
        cloud = read_ply(allowed.check(folder / name))
    except FormatError as error:
        warnings.append(f"its point cloud is not used: {error}")
        return None
    return SparsePoints(cloud.xyz.double(), cloud.rgb) if len(cloud) else None


# ---- writing -----------------------------------------------------------------------------------------------


def write(scene: Scene, folder: Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None) -> Path:
    """`cloud` becomes `points.ply`; without it the scene's sparse points do, if it has any."""
    frames = []
    for view in scene.views:
        image = copy_image(view, folder / "images", safe_name(view))
        mask = copy_mask(view, folder / "masks" / f"{safe_name(view)}.png")
        names = [None if path is None else path.relative_to(folder).as_posix() for path in (image, mask)]
        frames.append(frame_entry(view, names[0] or "", names[1]))
    indices = index_by_name(scene.views)
    suffix = _depth_suffix(scene)
    for view, depth_map in depth_maps:
        name = f"depths/{safe_name(view)}{suffix}"
        write_depth(folder / name, depth_map.depth, scale=DEPTH_SCALE, made_by=depth_map.made_by)
        frames[indices[view.name]]["depth_file_path"] = name
    if cloud is None and scene.points is not None and len(scene.points.xyz):
        cloud = PointCloud(scene.points.xyz, scene.points.rgb)
    if cloud is not None:
        write_ply(folder / "points.ply", cloud)
    write_transforms(folder / "transforms.json", frames, None if cloud is None else "points.ply")
    return folder


def _depth_suffix(scene: Scene) -> str:
    """16-bit PNG where steps of 0.001 cover the range and are fine enough; else float arrays."""
    ranges = [view.depth_range for view in scene.views]
    fits = all(r is not None and r.near >= 0.25 and r.far <= 60 for r in ranges)
    return ".png" if fits else ".npy"


KIND = Kind(
    "nerfstudio",
    "nerfstudio / instant-ngp folder",
    " or ".join(_NAMES),
    recognise,
    read,
    (Writer("nerfstudio", write, cloud=True),),
    folders=("images", "masks", "mask"),
)
