"""A scene for OpenMVS: `scene.mvs`, `images/`, and `depth%04d.dmap` where there are depth maps.

`DensifyPointCloud scene.mvs --resolution-level 0` then fuses the depth maps instead of estimating its own.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from gbinet.camera import Camera
from gbinet.formats.atomic import atomic_path
from gbinet.formats.made_by import record_maker
from gbinet.formats.openmvs import opencv_intrinsics, write_dmap
from gbinet.scene import Scene
from gbinet.scenes.write_colmap import copy_images, tracks_of
from gbinet.scenes.writing import DepthMaps, copy_mask, index_by_name

_VERSION = 5  # of the MVSI stream: the first that knows masks


def write_openmvs(scene: Scene, folder: str | Path, depth_maps: DepthMaps = ()) -> Path:
    """View i of the scene is image i there, and its depth map is `depth%04d.dmap`."""
    folder = Path(folder)
    names = [f"images/{name}" for name in copy_images(scene, folder)]
    masks = [copy_mask(v, folder / "masks" / f"{v.name}.png") for v in scene.views]
    mask_names = ["" if mask is None else mask.relative_to(folder).as_posix() for mask in masks]
    indices = index_by_name(scene.views)
    for view, depth_map in depth_maps:
        index = indices[view.name]
        path = folder / f"depth{index:04d}.dmap"
        record_maker(path, depth_map.made_by)
        write_dmap(
            path,
            depth_map,
            (view.camera.width, view.camera.height),
            names[index],
            [index, *(source.index for source in view.sources)],
        )
    with atomic_path(folder / "scene.mvs") as temporary, temporary.open("wb") as file:
        _write_interface(file, scene, names, mask_names)
    return folder


def _write_interface(file: BinaryIO, scene: Scene, names: list[str], mask_names: list[str]) -> None:
    """The MVSI stream: platforms (one per view), images, points; every list begins with its length."""
    file.write(struct.pack("<4sII", b"MVSI", _VERSION, 0))
    file.write(struct.pack("<Q", len(scene.views)))
    for view in scene.views:
        _write_platform(file, view.name, view.camera.to("cpu", torch.float64))
    file.write(struct.pack("<Q", len(scene.views)))
    for index, (name, mask_name) in enumerate(zip(names, mask_names, strict=True)):
        file.write(_string(name) + _string(mask_name))
        file.write(struct.pack("<4I", index, 0, 0, index))  # platform, camera, pose, the image's own number
    points = scene.points
    xyz = [] if points is None else points.xyz.tolist()
    tracks = [] if points is None else tracks_of(points)
    file.write(struct.pack("<Q", len(xyz)))
    for position, track in zip(xyz, tracks, strict=True):
        file.write(struct.pack("<3fQ", *position, len(track)))
        for view_index in sorted(track):
            file.write(struct.pack("<If", view_index, 0.0))
    file.write(struct.pack("<Q", 0))  # normals of points
    rgb = None if points is None or points.rgb is None else points.rgb.cpu().numpy()
    file.write(struct.pack("<Q", 0 if rgb is None else len(rgb)))
    if rgb is not None:
        file.write(np.ascontiguousarray(rgb[:, ::-1]).tobytes())  # OpenMVS keeps blue first
    file.write(struct.pack("<3Q", 0, 0, 0))  # lines, their normals and colours
    file.write(np.eye(4, dtype="<f8").tobytes())  # transform to another frame: none


def _write_platform(file: BinaryIO, name: str, camera: Camera) -> None:
    file.write(_string(name) + struct.pack("<Q", 1))  # one camera
    file.write(_string(name) + _string("") + struct.pack("<II", camera.width, camera.height))
    for values in (opencv_intrinsics(camera.K), torch.eye(3), torch.zeros(3)):  # in the platform's frame
        file.write(values.numpy().astype("<f8").tobytes())
    file.write(struct.pack("<Q", 1))  # one pose
    for values in (camera.cam_from_world[:3, :3], camera.centre):
        file.write(np.ascontiguousarray(values.numpy(), dtype="<f8").tobytes())


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
