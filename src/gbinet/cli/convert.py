"""`gbinet convert`: scenes, depth maps and point clouds from one format to another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gbinet.cli.options import (
    Factor,
    RecognisedKind,
    SceneFlags,
    SceneOptions,
    StatedFactor,
    WriterName,
    otherwise,
)
from gbinet.cli.say import say, say_notes
from gbinet.depthmap import DepthMap
from gbinet.errors import InputError, SceneError
from gbinet.formats.cloud_files import is_cloud_name
from gbinet.scene import Scene, View
from gbinet.scenes.kinds import write_scene, writers

if TYPE_CHECKING:
    from gbinet.scenes.depth_folder import DepthFolder


def run(
    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IN")],
    target: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")],
    to: WriterName | None = None,
    kind: RecognisedKind = None,
    depth: Annotated[Path | None, otherwise("the depth of the scene", "PATH")] = None,
    cloud: Annotated[Path | None, otherwise("the sparse points", "FILE")] = None,
    scene: SceneFlags = SceneOptions(),
    depth_scale: StatedFactor = None,
    scale_out: Factor = 1.0,
    crs: str | None = None,
    overwrite: bool = False,
) -> None:
    """Convert a scene folder, one depth map, or one point cloud.

    Args:
        source: A scene folder (COLMAP, MVSNet, nerfstudio, RGB-D, ...), a depth file or a cloud (.ply, .las,
            .laz, .xyz).
        target: The folder or file to write; the extension of a file sets its format.
        to: Format of the written scene (required for scenes). colmap-dense is a workspace for COLMAP's
            stereo_fusion; depth-png and depth-exr are only the depth maps, with cameras in cameras.json.
        kind: Read the scene as this kind (see `gbinet info`) instead of the detected one.
        depth: Folder of depth maps with the names of the views, or the output of `gbinet reconstruct`.
        cloud: Point cloud for nerfstudio.
        depth_scale: Factor from stored depth to the scene's unit, e.g. 0.001 from millimetres to metres.
        scale_out: The same for the depth file to write.
        crs: Coordinate system to store in a .las or .laz file, e.g. EPSG:32615. A .ply beside the
            georeference.json of its run is moved to the map, and needs none.
        overwrite: Write into a folder that is not empty.
    """
    if source.is_dir():
        if to is None:
            raise InputError(f"{source} is a scene: say what to write, e.g. --to nerfstudio")
        _check_folders(source, target, to, depth, cloud, overwrite)
        _convert_scene(scene.load(source, kind), target, to, depth, cloud, depth_scale)
    elif is_cloud_name(source):
        _convert_cloud(source, target, crs)
    else:
        if not source.exists():
            raise InputError(f"{source}: there is no such file or folder")
        _convert_depth(source, target, depth_scale, scale_out)


def _convert_cloud(source: Path, target: Path, crs: str | None) -> None:
    from gbinet.formats.cloud_files import is_las_name
    from gbinet.formats.las import las_crs
    from gbinet.georeference.on_map import FILE, MapFrame, copy_cloud, frame_in, is_on_map

    if source.resolve() == target.resolve():
        raise InputError("source and target are the same file")
    if crs is None and is_las_name(source) and is_las_name(target):
        crs = las_crs(source)
    described = source.with_name(FILE)
    frame = frame_in(source.parent) if is_on_map(target) and not is_on_map(source) else None
    if frame is not None:
        frame = frame.with_crs(crs, described)
        say(frame.note(described))
    count = copy_cloud(source, target, frame or MapFrame(crs=crs))
    say(f"{count:,} points in {target}")


def _convert_depth(source: Path, target: Path, depth_scale: float | None, scale_out: float) -> None:
    from gbinet.formats.depth_files import read_confidence, read_depth, write_depth
    from gbinet.formats.made_by import maker_of
    from gbinet.scenes.depth_scales import StatedScales

    if source.resolve() == target.resolve():
        raise InputError("source and target are the same file")
    scale = StatedScales(source.parent).of(source) if depth_scale is None else depth_scale
    values = read_depth(source, scale)
    write_depth(target, values, read_confidence(source), scale_out, maker_of(source))
    say(f"depth map of {values.shape[1]}x{values.shape[0]} in {target}")
    known = values[values > 0]
    loss = 0.5 * scale_out / float(known.min()) if known.size else 0.0
    if target.suffix.lower() == ".png" and loss > 0.005:
        say(f"note: steps of {scale_out:g} move depths by up to {loss:.0%}; try a smaller --scale-out")


def _check_folders(
    source: Path, target: Path, to: str, depth: Path | None, cloud: Path | None, overwrite: bool
) -> None:
    if target.resolve() == source.resolve():
        raise InputError("source and target are the same folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise InputError(f"{target} is not empty; choose another folder, or add --overwrite")
    if cloud is not None and not writers()[to].cloud:
        takers = ", ".join(name for name, writer in writers().items() if writer.cloud)
        raise InputError(f"--cloud is for {takers}; {to} has no place for it")
    if depth is not None and writers()[to].depth == "dropped":
        takers = ", ".join(name for name, writer in writers().items() if writer.depth != "dropped")
        raise InputError(f"--to {to} has no place for depth maps; these have: {takers}")


def _convert_scene(
    scene: Scene, target: Path, to: str, depth: Path | None, cloud: Path | None, depth_scale: float | None
) -> None:
    from gbinet.formats.cloud_files import read_cloud

    say_notes(scene.warnings)
    maps = _depth_maps(scene, depth, depth_scale)
    found = maps.known()
    if found and writers()[to].depth == "dropped":
        say(f"note: {len(found)} depth maps are not written: {to} has no place for them")
        found = []
    if not found and writers()[to].depth == "needed":
        raise SceneError(f"{scene.root} has no depth maps; give their folder with --depth")
    write_scene(scene, target, to, _read_all(maps, found), None if cloud is None else read_cloud(cloud))
    say(f"{len(scene.views)} views ({scene.kind} -> {to}), {len(found)} depth maps, in {target}")


def _depth_maps(scene: Scene, folder: Path | None, scale: float | None) -> DepthFolder:
    """The depth maps to take along: those of a folder, or those that the scene has."""
    from gbinet.scenes.depth_folder import DepthFolder

    maps = DepthFolder.of(scene, folder, scale)
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
