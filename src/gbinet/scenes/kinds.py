"""All kinds of scenes, and the questions that are asked about them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from gbinet.errors import InputError, SceneError
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.scenes import (
    blendedmvs,
    colmap,
    depth_pictures,
    dtu,
    mvsnet,
    nerfstudio,
    openmvs,
    photos,
    result,
    rgbd,
    tanks,
)
from gbinet.scenes.kind import DepthMaps, Kind, Writer

# The first kind that recognises a folder counts.
KINDS: list[Kind] = [
    result.KIND,
    dtu.KIND,
    colmap.KIND,
    nerfstudio.KIND,
    blendedmvs.KIND,
    tanks.KIND,
    mvsnet.KIND,
    rgbd.KIND,
    openmvs.KIND,
    depth_pictures.KIND,
    photos.KIND,
]


def recognise(folder: Path) -> Kind | None:
    """The kind of scene that a folder holds; None where it is not a scene: see `why_not`."""
    return next((kind for kind in KINDS if kind.recognise(folder)), None)


def why_not(folder: Path) -> str:
    """Message for a folder that is not a scene: what was looked for, or which scenes lie in it."""
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and recognise(path)]
    if inside:
        few = ", ".join(str(path) for path in inside[:3])
        return f"{folder}: is not a scene, but holds {len(inside)}; give one of them: {few}"
    looked_for = "; ".join(
        f"{kind.title} ({kind.signs})" for kind in KINDS if kind.read is not None and kind.posed
    )
    return (
        f"{folder}: is not a scene: it holds no photos that can be read, neither itself nor in images/. "
        f"Scenes with cameras are recognised too: {looked_for}"
    )


def readable() -> dict[str, Kind]:
    """Kinds by name, as `--kind` takes them."""
    return {kind.name: kind for kind in KINDS if kind.read is not None and kind.posed}


def writers() -> dict[str, Writer]:
    """Writers by name, as `--to` takes them."""
    return {writer.name: writer for kind in KINDS for writer in kind.writers}


def kind_named(name: str) -> Kind:
    found = readable().get(name)
    if found is None:
        raise SceneError(f"'{name}' is not a kind of scene; there are {', '.join(readable())}")
    return found


def title_of(name: str) -> str:
    """What people call scenes of this kind; the name itself for a kind that is not in the list."""
    return next((kind.title for kind in KINDS if kind.name == name), name)


def is_tracked(name: str) -> bool:
    """Whether the poses of this kind come from a tracking device: they are rarely right to a pixel."""
    return any(kind.name == name and kind.tracked for kind in KINDS)


def is_scene_folder(name: str) -> bool:
    """Whether readers look into a folder of this name for a part of a scene."""
    return any(fnmatchcase(name, pattern) for kind in KINDS for pattern in kind.folders)


def write_scene(
    scene: Scene, folder: str | Path, to: str, depth_maps: DepthMaps = (), cloud: PointCloud | None = None
) -> Path:
    """Write a scene, and depth maps of some or all of its views, in one of the formats of `writers()`."""
    if to not in writers():
        raise InputError(f"'{to}' is not a format for scenes; choose one of {', '.join(writers())}")
    if not scene.views:
        raise InputError(f"scene {scene.name} has no views to write")
    return writers()[to].write(scene, Path(folder), depth_maps, cloud)
