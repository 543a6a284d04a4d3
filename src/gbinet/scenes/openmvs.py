"""Scenes for OpenMVS, written: `scene.mvs`, `images/`, and `depth%04d.dmap` where there are depth maps.

`DensifyPointCloud scene.mvs --resolution-level 0` then fuses the depth maps instead of estimating its own.
"""

from __future__ import annotations

from pathlib import Path

from gbinet.formats.made_by import record_maker
from gbinet.formats.openmvs import write_dmap, write_interface
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.scenes.kind import DepthMaps, Kind, Writer
from gbinet.scenes.writing import copy_images, copy_mask, index_by_name


def write(scene: Scene, folder: Path, depth_maps: DepthMaps = (), cloud: PointCloud | None = None) -> Path:
    """View i of the scene is image i there, and its depth map is `depth%04d.dmap`."""
    names = [f"images/{name}" for name in copy_images(scene, folder)]
    masks = [copy_mask(v, folder / "masks" / f"{v.name}.png") for v in scene.views]
    mask_names = ["" if mask is None else mask.relative_to(folder).as_posix() for mask in masks]
    indices = index_by_name(scene.views)
    for view, depth_map in depth_maps:
        index = indices[view.name]
        path = folder / f"depth{index:04d}.dmap"
        record_maker(path, depth_map.made_by)
        size = (view.camera.width, view.camera.height)
        write_dmap(path, depth_map, size, names[index], [index, *(s.index for s in view.sources)])
    write_interface(folder / "scene.mvs", scene, names, mask_names)
    return folder


KIND = Kind("openmvs", "OpenMVS scene", "scene.mvs", writers=(Writer("openmvs", write),))
