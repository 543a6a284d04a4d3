"""A scene as an MVSNet folder: `images/`, `cams/`, `pair.txt`; `masks/` and `depths/` where there are any."""

from __future__ import annotations

from pathlib import Path

import torch

from gbinet.formats.atomic import atomic_path
from gbinet.formats.depth_files import write_depth
from gbinet.scene import Scene, View
from gbinet.scenes.writing import (
    DepthMaps,
    copy_image,
    copy_mask,
    index_by_name,
    matrix_rows,
    range_of,
)

PLANES = 192  # of the tail `near interval planes far`: what MVSNet itself would sweep


def write_mvsnet(scene: Scene, folder: str | Path, depth_maps: DepthMaps = ()) -> Path:
    """Views are numbered in the scene's order; depth maps become `depths/%08d.pfm`."""
    folder = Path(folder)
    for number, view in enumerate(scene.views):
        copy_image(view, folder / "images", f"{number:08d}")
        copy_mask(view, folder / "masks" / f"{number:08d}.png")
        _write_text(folder / "cams" / f"{number:08d}_cam.txt", cam_text(view))
    _write_text(folder / "pair.txt", pair_text(scene))
    numbers = index_by_name(scene.views)
    for view, depth_map in depth_maps:
        path = folder / "depths" / f"{numbers[view.name]:08d}.pfm"
        write_depth(path, depth_map.depth, made_by=depth_map.made_by)
    return folder


def cam_text(view: View) -> str:
    """Numbers are written so that they read back exactly."""
    camera, limits = view.camera.to("cpu", torch.float64), range_of(view)
    interval = (limits.far - limits.near) / (PLANES - 1)
    return (
        f"extrinsic\n{matrix_rows(camera.cam_from_world)}\n\n"
        f"intrinsic\n{matrix_rows(camera.K)}\n\n"
        f"{limits.near!r} {interval!r} {PLANES} {limits.far!r}\n"
    )


def pair_text(scene: Scene) -> str:
    lines = [str(len(scene.views))]
    for number, view in enumerate(scene.views):
        sources = " ".join(f"{source.index} {source.score!r}" for source in view.sources)
        lines += [str(number), f"{len(view.sources)} {sources}".rstrip()]
    return "\n".join(lines) + "\n"


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text)
