"""`gbinet render`: random textured scenes with exact depth, as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from gbinet.cli.options import Assets, Device, Size, otherwise
from gbinet.cli.say import say


def run(
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")],
    scenes: int = 20,
    views: int = 11,
    size: Size = (1600, 1152),
    assets: Assets = None,
    layout: Literal["mvsnet", "blendedmvs"] = "mvsnet",
    scene_kind: Annotated[
        Literal["table", "room", "facade", "terrain"] | None,
        otherwise("all kinds", "{table,room,facade,terrain}"),
    ] = None,
    units_per_metre: float = 1.0,
    life: float = 0.0,
    seed: int = 0,
    device: Device = "auto",
) -> None:
    """Render scenes with photos, cameras, source views and exact depth maps. Finished scenes are kept.

    Args:
        out: Folder for the scenes, with one subfolder each.
        scenes: Number of scenes.
        views: Photos per scene.
        size: WIDTHxHEIGHT of the photos.
        assets: Folder of objects and textures (gso/, polyhaven/, meshes/, textures/), or a folder of such
            folders.
        layout: Layout of the scene folders.
        scene_kind: Render only this kind of scene.
        units_per_metre: Unit of cameras and depth maps; 1000 means millimetres.
        life: Share of scenes with the difficulties of real photos: gloss, plain walls, sky, thin objects,
            blur, dim light, and so on. Cameras and depth maps stay exact.
        seed: Random seed. Different seeds give different scenes.
    """
    from gbinet.cli.progress import progress_bar
    from gbinet.inference.device import pick_device
    from gbinet.render.write import WriteConfig, write_dataset

    config = WriteConfig(scenes, views, *size, layout, scene_kind, seed, units_per_metre, life)
    with progress_bar("rendering") as progress:
        folders = write_dataset(out, config, assets, pick_device(device, mps=False), progress)
    say(f"{len(folders)} scenes of {views} photos in {out}")
