"""A COLMAP dense workspace: what `colmap stereo_fusion`, `poisson_mesher` and `delaunay_mesher` work on.

images/  sparse/  stereo/depth_maps/NAME.geometric.bin  stereo/normal_maps/NAME.geometric.bin
stereo/patch-match.cfg  stereo/fusion.cfg
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.formats.atomic import atomic_path
from gbinet.formats.colmap_array import write_colmap_array
from gbinet.formats.made_by import record_maker
from gbinet.scene import Scene, SparsePoints
from gbinet.scenes.write_colmap import copy_images, write_model
from gbinet.scenes.writing import DepthMaps, index_by_name

_TIES = 400  # points per depth map that tell COLMAP which views overlap, where the scene has no tracks


def write_workspace(scene: Scene, folder: str | Path, depth_maps: DepthMaps) -> Path:
    """Write the workspace; views without a depth map are in the model but not in the fusion."""
    folder = Path(folder)
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
    write_model(folder / "sparse", scene.views, names, points)
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
    """Up to _TIES world points, evenly over the known pixels, [N, 3]."""
    known = depth_map.points()[depth_map.valid]  # [M, 3]
    return known[:: max(1, len(known) // _TIES)].double().cpu()


def _tie_points(scene: Scene, fused: list[int], ties: list[Tensor]) -> SparsePoints:
    """COLMAP fuses views that share sparse points, so that a scene without tracks needs some.

    A point of a depth map counts as seen by its view and by those of its sources that have it in the image.
    """
    xyz: list[Tensor] = []
    tracks: list[list[int]] = []
    for index, points in zip(fused, ties, strict=True):
        seen = torch.zeros(len(points), len(scene.views), dtype=torch.bool)
        seen[:, index] = True
        for source in scene.views[index].sources:
            camera = scene.views[source.index].camera
            pixels, depth = camera.to("cpu", torch.float64).project(points)
            x, y = pixels.unbind(-1)
            seen[:, source.index] = (depth > 0) & (x > 0) & (y > 0) & (x < camera.width) & (y < camera.height)
        xyz.append(points)
        tracks += [row.nonzero().flatten().tolist() for row in seen]
    lengths = torch.tensor([0, *(len(track) for track in tracks)])
    return SparsePoints(
        xyz=torch.cat(xyz) if xyz else torch.zeros(0, 3, dtype=torch.float64),
        view_index=torch.tensor([view for track in tracks for view in track], dtype=torch.int64),
        track_start=lengths.cumsum(0),
    )


def _write_lines(path: Path, lines: list[str]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines))
