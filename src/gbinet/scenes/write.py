"""One door to all writers of scenes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gbinet.errors import InputError
from gbinet.scene import Scene
from gbinet.scenes.colmap_dense import write_workspace
from gbinet.scenes.openmvs import write_openmvs
from gbinet.scenes.write_colmap import write_colmap
from gbinet.scenes.write_mvsnet import write_mvsnet
from gbinet.scenes.write_nerfstudio import write_nerfstudio
from gbinet.scenes.writing import DepthMaps

# What can be written, and by what. Only the sparse models of COLMAP have no place for depth maps.
WRITERS: dict[str, Callable[[Scene, Path, DepthMaps], Path]] = {
    "mvsnet": write_mvsnet,
    "colmap": lambda scene, folder, _: write_colmap(scene, folder),
    "colmap-text": lambda scene, folder, _: write_colmap(scene, folder, text=True),
    "colmap-dense": write_workspace,
    "nerfstudio": write_nerfstudio,
    "openmvs": write_openmvs,
}


def write_scene(scene: Scene, folder: str | Path, kind: str, depth_maps: DepthMaps = ()) -> Path:
    """Write a scene, and depth maps of some or all of its views, as one of WRITERS."""
    if kind not in WRITERS:
        raise InputError(f"'{kind}' is not a format for scenes; choose one of {', '.join(WRITERS)}")
    if not scene.views:
        raise InputError(f"scene {scene.name} has no views to write")
    return WRITERS[kind](scene, Path(folder), depth_maps)
