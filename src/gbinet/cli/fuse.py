"""`gbinet fuse`: depth maps, from gbinet or another program, into one cloud."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gbinet.cli.cluster_options import ClusterFlags, ClusterOptions
from gbinet.cli.options import (
    Device,
    FusionFlags,
    FusionOptions,
    Images,
    Masks,
    MeshFlags,
    MeshOptions,
    Out,
    StatedFactor,
    otherwise,
)
from gbinet.cli.progress import StepBars
from gbinet.cli.say import say, say_notes
from gbinet.errors import InputError, SceneError, check_positive
from gbinet.formats.cloud_files import check_cloud_name
from gbinet.fusion.fuse import FusionConfig
from gbinet.fusion.mesh import Mesher
from gbinet.scene import Scene

if TYPE_CHECKING:
    from gbinet.georeference.on_map import MapFrame
    from gbinet.scenes.depth_folder import DepthFolder


def run(
    scene: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCENE")],
    out: Out,
    depth: Annotated[Path | None, otherwise("the depth of the scene", "PATH")] = None,
    depth_scale: StatedFactor = None,
    fusion: FusionFlags = FusionOptions(),
    max_sources: int = FusionConfig.max_sources,
    images: Images = None,
    masks: Masks = None,
    mesh: MeshFlags = MeshOptions(),
    tiles: Annotated[float | None, otherwise("one file", "LENGTH")] = None,
    workers: ClusterFlags = ClusterOptions(),
    device: Device = "auto",
) -> None:
    """Fuse depth maps into a point cloud. Memory use does not grow with their number.

    Args:
        scene: Scene with cameras (COLMAP or its dense workspace, MVSNet, nerfstudio, RGB-D, ...).
        out: The file to write (.ply, .las, .laz or .xyz), or a folder for cloud.ply. All but .ply are in map
            coordinates, if SCENE is a result that has them.
        depth: Folder of depth maps with the names of the views (.npz .npy .pfm .png .tif .bin .dmap), the
            output of `gbinet depth`, or a COLMAP workspace.
        depth_scale: Factor from stored depth to the scene's unit, e.g. 0.001 from millimetres to metres.
        max_sources: Number of neighbours that each view is compared with.
        images: Folder of the photos, if they are not beside the cameras of the scene. Files outside the scene
            and this folder are not read.
        masks: Folder of masks with the names of the photos; black pixels are ignored.
        tiles: Write the cloud as cubes with edges of this length, in the scene's unit: one file for each in
            out/tiles, and index.json.
    """
    from gbinet.cluster.session import connected
    from gbinet.georeference.on_map import map_writer, renew_copies
    from gbinet.pipeline.computing import compute_cloud, tile_writer
    from gbinet.pipeline.output import is_output_folder, output_folder
    from gbinet.scenes.load import load_scene

    if depth_scale is not None:
        check_positive("--depth-scale", depth_scale)
    config = fusion.applied(FusionConfig(max_sources=max_sources))
    as_folder = out.is_dir() or not _has_ending(out)
    out = _cloud_file(out, as_folder, tiles, mesh)
    found = load_scene(scene, images=images, masks=masks, max_sources=max_sources)
    maps = _maps_of(found, scene, depth, depth_scale)
    frame = _frame_of(found, out)
    mesher = None
    if mesh.mesh is not None:
        mesher = Mesher(found, maps, mesh.mesh, config, mesh.mesh_voxel, mesh.mesh_faces)
    # A file in some folder is nobody else's business; in an output folder, other runs may be at work.
    whole = as_folder or is_output_folder(out.parent)
    with output_folder(out.parent) if whole else nullcontext(), connected(workers.config()) as cluster:
        tiled = None if tiles is None else tile_writer(cluster, out.parent / "tiles", tiles)
        with StepBars() as bars:
            result = compute_cloud(
                cluster, found, maps, maps, out, config, device=device, progress=partial(bars, "fusion"),
                on_view=None if mesher is None else mesher.add, wants=lambda _: mesher is not None,
                writer=tiled or map_writer(out, frame),
            )  # fmt: skip
        renewed, notes = renew_copies(out, frame) if tiles is None else ([], [])
        say_notes([*found.warnings, *result.warnings, *notes])  # now: they may tell why a mesh fails
        meshes = [] if mesher is None else mesher.write(out, out.with_name(f"{out.stem}_mesh.ply"))
    for path in [*renewed, *meshes]:
        say(f"also: {path}")
    written = out if tiles is None else out.parent / "tiles" / "index.json"
    say(f"{result.points:,} points from {result.views} of {len(found.views)} views: {written}")


def _maps_of(found: Scene, scene: Path, depth: Path | None, scale: float | None) -> DepthFolder:
    """The depth maps to fuse; `scene` and `depth` are what the user gave."""
    from gbinet.scenes.depth_folder import DepthFolder

    maps = DepthFolder.of(found, depth, scale)
    if not maps.known():
        raise SceneError(
            f"{depth or scene}: no depth map is named like a view, e.g. {found.views[0].name}.npz"
        )
    if maps.has_unused_predictions:
        say(f"note: the true depth in {scene} is fused; for the depth maps of gbinet add --depth {scene}")
    return maps


def _frame_of(scene: Scene, out: Path) -> MapFrame | None:
    """Where a result lies on the map, if it is one and that is known."""
    from gbinet.georeference.on_map import FILE, frame_in, is_on_map
    from gbinet.scenes.result import KIND

    frame = frame_in(scene.root) if scene.kind == KIND.name else None
    if frame is not None and is_on_map(out):
        say(frame.note(scene.root / FILE))
    return frame


def _cloud_file(out: Path, as_folder: bool, tiles: float | None, mesh: MeshOptions) -> Path:
    """The cloud's file, if what was asked for can be written there."""
    if mesh.mesh_voxel is not None:
        check_positive("--mesh-voxel", mesh.mesh_voxel)
    check_positive("--mesh-faces", mesh.mesh_faces)
    if tiles is not None:
        _check_tiles(tiles, as_folder, out, mesh)
    if as_folder:
        out = out / "cloud.ply"
    check_cloud_name(out)
    if mesh.mesh == "poisson" and out.suffix.lower() != ".ply":
        raise InputError(f"--mesh poisson needs normals, which '{out.suffix}' has no place for; write a .ply")
    return out


def _check_tiles(edge: float, as_folder: bool, out: Path, mesh: MeshOptions) -> None:
    check_positive("--tiles", edge)
    if not as_folder:
        raise InputError(f"{out}: --tiles writes many files; -o must be a folder then")
    if mesh.mesh == "poisson":
        raise InputError("--mesh poisson needs the cloud in one file; omit --tiles, or try --mesh tsdf")


def _has_ending(path: Path) -> bool:
    """Whether a name ends like that of a file: in letters. `results_v1.2` is a folder."""
    return path.suffix[1:].isalpha() or path.suffix.lower() == ".e57"  # a cloud of other programs
