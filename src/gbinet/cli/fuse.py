"""`gbinet fuse`: depth maps, ours or of others, into one cloud."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import tyro

from gbinet.cli.fusion_options import AS_IS, FusionFlags
from gbinet.errors import InputError, SceneError, check_positive
from gbinet.formats.cloud_files import check_cloud_name
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.fusion.mesh import Mesher, MeshKind


def run(
    scene: tyro.conf.Positional[Path],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    depth: Path | None = None,
    depth_scale: float = 1.0,
    fusion: FusionFlags = AS_IS,
    max_sources: int = FusionConfig.max_sources,
    images: Path | None = None,
    masks: Path | None = None,
    mesh: MeshKind | None = None,
    mesh_voxel: float | None = None,
    mesh_faces: int = 100_000,
    device: str = "auto",
) -> None:
    """Fuse depth maps into one cloud; memory does not grow with their number.

    Args:
        scene: Scene with poses (COLMAP, also a dense workspace; MVSNet; nerfstudio; RGB-D; ...).
        out: The file to write: .ply, .las, .laz or .xyz; or a folder for cloud.ply.
        depth: Folder of depth maps named like the views (.npz .npy .pfm .png .tif .bin .exr .dmap), or the
            output of `gbinet depth`, or a COLMAP workspace. Without it, the depth that the scene has is used.
        depth_scale: Stored depth times this is the depth in the scene's unit (0.001 for millimetres).
        max_sources: How many neighbours of each view are compared.
        images: Folder of the photos, if the scene has them elsewhere. What lies outside the scene and this
            folder is not read.
        masks: Folder of masks named like the photos; black is ignored.
        mesh: Also write <out>_mesh.ply (needs the extra 'mesh'): tsdf keeps to what photos confirmed, poisson
            closes holes; textured paints the photos onto tsdf, as <out>_mesh.glb and .obj.
        mesh_voxel: Edge of the voxels of --mesh tsdf and textured, in the scene's unit; 2 pixels by default.
        mesh_faces: Triangles of a textured mesh, at most.
        device: auto, cpu, cuda, cuda:1, mps.
    """
    from gbinet.cli.progress import StageBars
    from gbinet.cli.say import say, say_notes
    from gbinet.data.depth_folder import DepthFolder, place_of
    from gbinet.data.load import load_scene
    from gbinet.inference.device import pick_device
    from gbinet.pipeline.output import is_output_folder, output_folder

    check_positive("--depth-scale", depth_scale)
    if mesh_voxel is not None:
        check_positive("--mesh-voxel", mesh_voxel)
    check_positive("--mesh-faces", mesh_faces)
    config = fusion.applied(FusionConfig(max_sources=max_sources))
    as_folder = out.is_dir() or not out.suffix
    if as_folder:
        out = out / "cloud.ply"
    check_cloud_name(out)
    if mesh == "poisson" and out.suffix.lower() != ".ply":
        raise InputError(f"--mesh poisson needs normals, which '{out.suffix}' has no place for; write a .ply")
    found = load_scene(scene, images=images, masks=masks, max_sources=max_sources)
    maps = DepthFolder(found, None if depth is None else place_of(depth), depth_scale)
    if not maps.known():
        where = depth if depth is not None else scene
        raise SceneError(f"{where}: no depth map is named like a view, e.g. {found.views[0].name}.npz")
    mesher = None if mesh is None else Mesher(found, maps, mesh, config, mesh_voxel, mesh_faces)
    # A file in some folder is nobody else's business; in an output folder, other runs may be at work.
    whole = as_folder or is_output_folder(out.parent)
    with output_folder(out.parent) if whole else nullcontext(), StageBars() as bars:
        result = fuse(
            found,
            maps,
            out,
            config,
            device=pick_device(device),
            progress=lambda done, total, what: bars("fusion", done, total, what),
            on_view=mesher.add if mesher else None,
        )
    say_notes([*found.warnings, *result.warnings])
    if mesher is not None:
        for path in mesher.write(out, out.with_name(f"{out.stem}_mesh.ply")):
            say(f"also: {path}")
    say(f"{result.points:,} points from {result.views} of {len(found.views)} views: {out}")
