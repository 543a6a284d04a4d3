"""`gbinet fuse`: depth maps, ours or of others, into one cloud."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import tyro

from gbinet.cli.fusion_options import AS_IS, FusionFlags
from gbinet.depthmap import DepthMap
from gbinet.errors import SceneError, check_positive
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.fusion.mesh import Mesher, MeshKind
from gbinet.scene import Scene


class DepthFiles:
    """Depth maps of any known format in a folder, named like the views; or those that a scene has."""

    def __init__(self, scene: Scene, folder: Path | None, scale: float) -> None:
        from gbinet.formats.depth_files import find_depth_file

        if folder is None:
            self.files = {i: (v.depth_path, v.depth_scale) for i, v in enumerate(scene.views) if v.depth_path}
        else:
            # What we and COLMAP write, or plain.
            places = (folder / "depth", folder / "stereo" / "depth_maps", folder)
            place = next((p for p in places if p.is_dir()), folder)
            found = ((i, find_depth_file(place, view.name)) for i, view in enumerate(scene.views))
            self.files = {i: (path, scale) for i, path in found if path is not None}
        self.scene = scene

    def load(self, index: int) -> DepthMap | None:
        from gbinet.formats.depth_files import read_depth_map

        if index not in self.files:
            return None
        path, scale = self.files[index]
        return read_depth_map(path, self.scene.views[index].camera, scale)


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
    device: str = "auto",
) -> None:
    """Fuse depth maps into one cloud; memory does not grow with their number.

    Args:
        scene: Scene with poses (COLMAP, also a dense workspace; MVSNet; nerfstudio; RGB-D; ...).
        out: The .ply file to write.
        depth: Folder of depth maps named like the views (.npz .npy .pfm .png .tif .bin .dmap), or the output
            of `gbinet depth`, or a COLMAP workspace. Without it, the depth that the scene itself has is used.
        depth_scale: Stored depth times this is the depth in the scene's unit (0.001 for millimetres).
        max_sources: How many neighbours of each view are asked.
        images: Folder of the photos, where the scene has them elsewhere. What lies outside the scene and this
            folder is not read.
        masks: Folder of masks named like the photos; black is ignored.
        mesh: Also write <out>_mesh.ply (needs the extra 'mesh'): tsdf keeps to what photos confirmed, poisson
            closes holes.
        mesh_voxel: Edge of the voxels of --mesh tsdf, in the scene's unit; 2 pixels by default.
        device: auto, cpu, cuda, cuda:1, mps.
    """
    from gbinet.cli.progress import StageBars
    from gbinet.cli.say import say, say_notes
    from gbinet.data.load import load_scene
    from gbinet.inference.device import pick_device
    from gbinet.pipeline.output import is_output_folder, output_folder

    check_positive("--depth-scale", depth_scale)
    if mesh_voxel is not None:
        check_positive("--mesh-voxel", mesh_voxel)
    config = fusion.applied(FusionConfig(max_sources=max_sources))
    as_folder = out.suffix.lower() != ".ply"
    if as_folder:
        out = out / "cloud.ply"
    found = load_scene(scene, images=images, masks=masks, max_sources=max_sources)
    maps = DepthFiles(found, depth, depth_scale)
    if not maps.files:
        where = depth if depth is not None else scene
        raise SceneError(f"{where}: no depth map is named like a view, e.g. {found.views[0].name}.npz")
    mesher = None if mesh is None else Mesher(found, maps, mesh, config, mesh_voxel)
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
        say(f"also: {mesher.write(out, out.with_name(f'{out.stem}_mesh.ply'))}")
    say(f"{result.points:,} points from {result.views} of {len(found.views)} views: {out}")
