"""COLMAP models: `sparse/0`, `sparse` or the folder itself, with the images beside them.

Written as a model, as text or binary, or as a dense workspace: what `colmap stereo_fusion`, `poisson_mesher`
and `delaunay_mesher` work on.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.errors import SceneError
from gbinet.formats.allowed_folders import AllowedFolders
from gbinet.formats.atomic import write_text
from gbinet.formats.colmap import (
    ColmapCamera,
    ColmapImage,
    ColmapModel,
    ColmapPoints,
    is_model,
    pinhole_parameters,
    read_model,
    write_model,
)
from gbinet.formats.colmap_array import write_colmap_array
from gbinet.formats.made_by import record_maker
from gbinet.formats.reading import is_file
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene, SparsePoints, View
from gbinet.scenes.kind import DepthMaps, Kind, ReadOptions, Writer
from gbinet.scenes.posed import PosedPhoto, views_of
from gbinet.scenes.undistort import Photo
from gbinet.scenes.views import MaskFinder
from gbinet.scenes.writing import copy_images, copy_mask, index_by_name

_MODEL_FOLDERS = ("sparse/0", "sparse", ".", "dense/sparse", "colmap/sparse/0", "dense/0/sparse")
_TIE_POINTS = 400  # per depth map: they tell COLMAP which views overlap, if the scene has no tracks


def recognise(folder: Path) -> bool:
    return model_folder(folder) is not None


def model_folder(folder: Path) -> Path | None:
    """Where the model lies: the first of the usual folders."""
    return next((folder / name for name in _MODEL_FOLDERS if is_model(folder / name)), None)


# ---- reading -----------------------------------------------------------------------------------------------


def read(folder: Path, options: ReadOptions) -> Scene:
    warnings: list[str] = []
    model_at = model_folder(folder)
    if model_at is None:
        raise SceneError(f"{folder}: holds no COLMAP model (looked in {', '.join(_MODEL_FOLDERS)})")
    others = [p.name for p in sorted(model_at.parent.glob("*/")) if p != model_at and is_model(p)]
    if model_at.name.isdigit() and others:
        warnings.append(
            f"the reconstruction is in {len(others) + 1} parts; only {model_at.name} is used (also: {others})"
        )
    model = read_model(model_at)
    if not model.images:
        raise SceneError(f"{model_at}: the model holds no images; its reconstruction failed")
    names = [image.name for image in model.images]
    images_at = options.images or _images_folder(folder, model_at, names)
    allowed = AllowedFolders(folder, images_at, images=options.images)
    masks = MaskFinder(folder, images_at, options.masks)

    def posed(index: int, name: str) -> PosedPhoto:
        image = model.images[index]
        path = allowed.find_photo(images_at, image.name)
        lens = model.cameras[image.camera_id]
        return PosedPhoto(name, Photo(path, masks.find(path)), lens, image.cam_from_world, model_at)

    views = views_of(model_at, names, posed, folder, options, warnings)
    points = sparse_points(model, [model.images[index] for index in views])
    return Scene(folder.resolve().name, "colmap", folder, tuple(views.values()), points, tuple(warnings))


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
        None if points.error is None else torch.from_numpy(points.error),
    )


def _images_folder(folder: Path, model: Path, names: list[str]) -> Path:
    """The folder that the model's image names are relative to: the first that has any of them."""
    above = model.parent
    candidates = [folder / "images", folder, above / "images", above.parent / "images", above]
    for candidate in candidates:
        if any(is_file(candidate / name) for name in names):
            return candidate
    raise SceneError(
        f"{model}: its images are not there (looked for {names[0]} and the others in "
        f"{', '.join(str(p) for p in dict.fromkeys(candidates))}); "
        f"put them into {folder / 'images'}, or say where they are: --images DIR"
    )


# ---- writing -----------------------------------------------------------------------------------------------


def write(
    scene: Scene,
    folder: Path,
    depth_maps: DepthMaps = (),
    cloud: PointCloud | None = None,
    *,
    text: bool = False,
) -> Path:
    """`images/`, `sparse/0/` and, where there are any, `masks/<image name>.png`."""
    names = copy_images(scene, folder)
    for view, name in zip(scene.views, names, strict=True):
        copy_mask(view, folder / "masks" / f"{name}.png")
    write_model(folder / "sparse" / "0", model_of(scene.views, names, scene.points), text)
    return folder


def model_of(views: tuple[View, ...], names: list[str], points: SparsePoints | None) -> ColmapModel:
    """A model in COLMAP's terms; ids are 1 + index. Views with the same intrinsics share a camera."""
    cameras: dict[tuple[float, ...], ColmapCamera] = {}
    images = []
    points = points or SparsePoints(torch.zeros(0, 3, dtype=torch.float64))
    point, view_of = _observations(points)  # [T], [T]
    order = np.argsort(view_of, kind="stable")
    indices = np.empty(len(order), np.int64)  # [T]
    seen = np.split(order, np.searchsorted(view_of[order], np.arange(1, len(views))))  # per view, of [T]
    for index, (view, name) in enumerate(zip(views, names, strict=True)):
        size, params = (view.camera.width, view.camera.height), pinhole_parameters(view)
        new = ColmapCamera(len(cameras) + 1, "PINHOLE", *size, np.array(params))
        camera = cameras.setdefault((*size, *params), new)
        indices[seen[index]] = np.arange(len(seen[index]))
        visible = points.xyz[torch.from_numpy(point[seen[index]])].double()
        pixels, _ = view.camera.to(dtype=torch.float64).project(visible)
        pose = view.camera.cam_from_world.double().numpy()
        ids = point[seen[index]] + 1
        images.append(ColmapImage(index + 1, name, camera.id, pose, pixels.numpy(), ids))
    count = len(points.xyz)
    rgb = torch.full((count, 3), 128, dtype=torch.uint8) if points.rgb is None else points.rgb
    starts = np.concatenate([[0], np.bincount(point, minlength=count).cumsum()]).astype(np.int64)
    table = ColmapPoints(
        np.arange(1, count + 1),
        points.xyz.double().numpy(),
        rgb.numpy(),
        starts,
        view_of + 1,
        indices,
        None if points.error is None else points.error.double().numpy(),
    )
    return ColmapModel(Path(), {camera.id: camera for camera in cameras.values()}, images, table)


def _observations(points: SparsePoints) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """[T] the point and [T] the view of every observation, in the order of the points."""
    if points.view_index is None or points.track_start is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    lengths = points.track_start.diff()
    point = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return point.numpy(), points.view_index.numpy()


# ---- a dense workspace -------------------------------------------------------------------------------------
#
# images/  sparse/  stereo/depth_maps/NAME.geometric.bin  stereo/normal_maps/NAME.geometric.bin
# stereo/patch-match.cfg  stereo/fusion.cfg


def write_workspace(
    scene: Scene, folder: Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None
) -> Path:
    """Write the workspace; views without a depth map are in the model but not in the fusion."""
    names = copy_images(scene, folder)
    indices = index_by_name(scene.views)
    fused: list[int] = []
    ties: list[Tensor] = []
    for view, depth_map in depth_maps:
        index = indices[view.name]
        depth = torch.where(depth_map.valid, depth_map.depth, 0)
        rotation = depth_map.camera.cam_from_world[:3, :3].to(depth)
        normals = depth_map.normals().to(depth) @ rotation.T  # COLMAP's are in the frame of the camera
        file = f"{names[index]}.geometric.bin"
        record_maker(folder / "stereo" / "depth_maps" / file, depth_map.made_by)
        write_colmap_array(folder / "stereo" / "depth_maps" / file, depth.cpu().numpy())
        write_colmap_array(folder / "stereo" / "normal_maps" / file, normals.cpu().numpy())
        ties.append(_some_points(depth_map))
        fused.append(index)
    points = scene.points
    if points is None or points.view_index is None or not len(points.view_index):
        points = _tie_points(scene, fused, ties)
    write_model(folder / "sparse", model_of(scene.views, names, points))
    (folder / "stereo" / "consistency_graphs").mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "stereo" / "fusion.cfg", [names[index] for index in fused])
    _write_lines(folder / "stereo" / "patch-match.cfg", _patch_match_lines(scene, names))
    return folder


def _patch_match_lines(scene: Scene, names: list[str]) -> list[str]:
    lines = []
    for view, name in zip(scene.views, names, strict=True):
        sources = ", ".join(names[source.index] for source in view.sources)
        lines += [name, sources or "__auto__, 20"]
    return lines


def _some_points(depth_map: DepthMap) -> Tensor:
    """About _TIE_POINTS world points, evenly over the known pixels, [N, 3]."""
    known = depth_map.points()[depth_map.valid]  # [M, 3]
    return known[:: max(1, len(known) // _TIE_POINTS)].double().cpu()


def _tie_points(scene: Scene, fused: list[int], ties: list[Tensor]) -> SparsePoints:
    """Points that tell COLMAP which views overlap: it fuses only views that share sparse points.

    A point of a depth map counts as seen by its view and by those of its sources that have it in the image.
    """
    parts = [torch.zeros(0, len(scene.views), dtype=torch.bool)]  # [N, V] each
    for index, points in zip(fused, ties, strict=True):
        seen_by = torch.zeros(len(points), len(scene.views), dtype=torch.bool)
        seen_by[:, index] = True
        for source in scene.views[index].sources:
            camera = scene.views[source.index].camera
            pixels, depth = camera.to("cpu", torch.float64).project(points)
            x, y = pixels.unbind(-1)
            inside = (depth > 0) & (x > 0) & (y > 0) & (x < camera.width) & (y < camera.height)
            seen_by[:, source.index] = inside
        parts.append(seen_by)
    seen = torch.cat(parts)  # [N, V]
    return SparsePoints(
        xyz=torch.cat([torch.zeros(0, 3, dtype=torch.float64), *ties]),
        view_index=seen.nonzero()[:, 1],
        track_start=torch.cat([torch.zeros(1, dtype=torch.int64), seen.sum(1).cumsum(0)]),
    )


def _write_lines(path: Path, lines: list[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


KIND = Kind(
    "colmap",
    "COLMAP model",
    ", ".join(_MODEL_FOLDERS[:2]),
    recognise,
    read,
    (
        Writer("colmap", write, depth="dropped"),
        Writer("colmap-text", partial(write, text=True), depth="dropped"),
        Writer("colmap-dense", write_workspace, depth="needed"),
    ),
    folders=("images", "masks", "mask", "sparse", "dense", "colmap", "stereo"),
)
