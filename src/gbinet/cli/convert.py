"""`gbinet convert`: scenes, depth maps and point clouds from one format to another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gbinet.cli.say import say, say_notes
from gbinet.depthmap import DepthMap
from gbinet.errors import InputError, SceneError
from gbinet.formats.cloud_files import is_cloud_name
from gbinet.scene import DepthRange, Scene, View

if TYPE_CHECKING:
    from gbinet.data.depth_folder import DepthFolder

Kind = Literal[
    "mvsnet", "colmap", "colmap-text", "colmap-dense", "nerfstudio", "openmvs", "depth-png", "depth-exr"
]
_WITHOUT_DEPTH = ("colmap", "colmap-text")


def run(
    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IN")],
    target: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")],
    to: Kind | None = None,
    kind: str | None = None,
    depth: Path | None = None,
    cloud: Path | None = None,
    depth_range: tuple[float, float] | None = None,
    images: Path | None = None,
    masks: Path | None = None,
    scale_in: Annotated[float, tyro.conf.arg(metavar="FACTOR")] = 1.0,
    scale_out: Annotated[float | None, tyro.conf.arg(metavar="FACTOR")] = None,
    crs: str | None = None,
    overwrite: bool = False,
) -> None:
    """Convert a scene folder, one depth map, or one point cloud.

    Args:
        source: A scene folder (COLMAP, MVSNet, nerfstudio, RGB-D, ...), a depth file or a cloud (.ply, .las,
            .laz, .xyz).
        target: The folder or file to write; the suffix of a file says its format.
        to: Format of the scene that is written. colmap-dense is a workspace for COLMAP's stereo_fusion;
            depth-png and depth-exr are the depth maps alone, with their cameras in cameras.json.
        kind: Read the scene as this (see `gbinet info`) instead of recognising it.
        depth: Folder of depth maps named like the views (or what `gbinet reconstruct` wrote); without it,
            depth that the scene itself has is used.
        cloud: Point cloud to hand to nerfstudio instead of the sparse points.
        depth_range: NEAR FAR for every view, instead of what the scene says.
        images: Folder of the photos, if the scene has them elsewhere. What lies outside the scene and this
            folder is not read.
        masks: Folder of masks, if it is not beside the images.
        scale_in: Stored depth times this is the depth in the scene's unit (0.001 for millimetres).
        scale_out: The same for depth files that are written: 1 for a single one; for depth-png the power of
            ten that fits the scene.
        crs: Coordinate system to note in a .las or .laz file, e.g. EPSG:32615.
        overwrite: Write into a folder that is not empty.
    """
    if source.is_dir():
        from gbinet.cli.progress import progress_bar
        from gbinet.data.load import load_scene

        if to is None:
            raise InputError(f"{source} is a scene: say what to write, e.g. --to nerfstudio")
        _check_folders(source, target, to, depth, cloud, overwrite)
        limits = None if depth_range is None else DepthRange(*depth_range)
        with progress_bar() as progress:
            scene = load_scene(
                source, kind=kind, depth_range=limits, images=images, masks=masks, progress=progress
            )
        _convert_scene(scene, target, to, depth, cloud, scale_in, scale_out)
    elif is_cloud_name(source):
        _convert_cloud(source, target, crs)
    else:
        from gbinet.formats.depth_files import read_confidence, read_depth, write_depth
        from gbinet.formats.made_by import maker_of

        step = 1.0 if scale_out is None else scale_out
        values = read_depth(source, scale_in)
        write_depth(target, values, read_confidence(source), step, maker_of(source))
        say(f"depth map of {values.shape[1]}x{values.shape[0]} in {target}")
        known = values[values > 0]
        loss = 0.5 * step / float(known.min()) if known.size else 0.0
        if target.suffix.lower() == ".png" and loss > 0.005:
            say(f"note: steps of {step:g} move depths by up to {loss:.0%}; try a smaller --scale-out")


def _convert_cloud(source: Path, target: Path, crs: str | None) -> None:
    from gbinet.formats.cloud_files import cloud_pieces, cloud_writer
    from gbinet.formats.las import las_crs

    if source.resolve() == target.resolve():
        raise InputError("source and target are the same file")
    if (
        crs is None
        and source.suffix.lower() in (".las", ".laz")
        and target.suffix.lower() in (".las", ".laz")
    ):
        crs = las_crs(source)
    with cloud_writer(target, crs) as writer:
        for piece in cloud_pieces(source):
            writer.append(piece)
    say(f"{writer.count:,} points in {target}")


def _check_folders(
    source: Path, target: Path, to: Kind, depth: Path | None, cloud: Path | None, overwrite: bool
) -> None:
    if target.resolve() == source.resolve():
        raise InputError("source and target are the same folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise InputError(f"{target} is not empty; choose another folder, or add --overwrite")
    if cloud is not None and to != "nerfstudio":
        raise InputError(f"--cloud is for nerfstudio; {to} has no place for it")
    if depth is not None and to in _WITHOUT_DEPTH:
        raise InputError("a sparse COLMAP model has no place for depth maps; write colmap-dense")


def _convert_scene(
    scene: Scene,
    target: Path,
    to: Kind,
    depth: Path | None,
    cloud: Path | None,
    scale_in: float,
    scale_out: float | None,
) -> None:
    from gbinet.formats.cloud_files import read_cloud
    from gbinet.formats.write_depth_folder import write_depth_folder
    from gbinet.formats.write_scene import write_scene
    from gbinet.formats.write_scene_nerfstudio import write_nerfstudio

    say_notes(scene.warnings)
    maps = _depth_maps(scene, depth, scale_in)
    found = maps.known()
    if found and to in _WITHOUT_DEPTH:
        say(f"note: {len(found)} depth maps are not written: a sparse COLMAP model has no place for them")
        found = []
    if to in ("colmap-dense", "depth-png", "depth-exr") and not found:
        raise SceneError(f"{scene.root} has no depth maps; give their folder with --depth")
    depth_maps = _read_all(maps, found)
    if to == "nerfstudio":
        write_nerfstudio(scene, target, depth_maps, None if cloud is None else read_cloud(cloud))
    elif to == "depth-png" or to == "depth-exr":
        write_depth_folder(scene, target, to, depth_maps, scale_out)
    else:
        write_scene(scene, target, to, depth_maps)
    say(f"{len(scene.views)} views ({scene.kind} -> {to}), {len(found)} depth maps, in {target}")


def _depth_maps(scene: Scene, folder: Path | None, scale: float) -> DepthFolder:
    """The depth maps to take along: those of a folder, or those that the scene has."""
    from gbinet.data.depth_folder import DepthFolder, place_of

    maps = DepthFolder(scene, None if folder is None else place_of(folder), scale)
    if folder is not None and not maps.known():
        raise SceneError(f"{maps.folder}: no depth map is named like a view, e.g. {scene.views[0].name}.npz")
    return maps


def _read_all(maps: DepthFolder, indices: list[int]) -> Iterator[tuple[View, DepthMap]]:
    from rich.progress import track

    quiet = not indices or not sys.stdout.isatty()
    for index in track(indices, "depth maps", transient=True, disable=quiet):
        depth_map = maps.load(index)
        assert depth_map is not None
        yield maps.scene.views[index], depth_map
