"""Rendered scenes as a data set on disk, in MVSNet's or BlendedMVS' layout."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gbinet.cores import usable_cores
from gbinet.errors import FormatError, InputError, check_not_negative
from gbinet.formats.atomic import write_json, write_text
from gbinet.formats.image import write_image
from gbinet.formats.mvsnet import cam_text, pair_text
from gbinet.formats.pfm import write_pfm
from gbinet.formats.reading import read_json
from gbinet.progress import Progress
from gbinet.render.assets import AssetLibrary
from gbinet.render.compose import KINDS, make_scene
from gbinet.render.difficulties import OF_SAMPLES, Difficulties
from gbinet.render.rig import Habits, content_range, draw_path, in_unit
from gbinet.render.scenery import RenderScene
from gbinet.render.seeding import generator
from gbinet.render.sensor import SensorConfig, expose
from gbinet.render.shade import render_colour, render_depth
from gbinet.scene import DepthRange, View
from gbinet.scenes.neighbours import rank_by_geometry

_WRITERS = 16  # threads: packing photos takes longer than rendering them on a GPU
# Layout -> folders of images, cameras and depth maps, and where pair.txt lies.
LAYOUTS = {
    "mvsnet": ("images", "cams", "depths", "pair.txt"),
    "blendedmvs": ("blended_images", "cams", "rendered_depth_maps", "cams/pair.txt"),
}


@dataclass(frozen=True)
class WriteConfig:
    """The data set to write."""

    scenes: int = 20
    views: int = 11  # photos per scene
    width: int = 1600
    height: int = 1152
    layout: str = "mvsnet"  # one of LAYOUTS
    kind: str | None = None  # one kind of scene; none: all, in their usual shares
    seed: int = 0
    unit: float = 1.0  # scene units per metre: 1000 writes millimetres
    life: float = 0.0  # share of scenes with the difficulties of real photos; what is written stays exact

    def __post_init__(self) -> None:
        if min(self.scenes, self.views, self.width, self.height) < 1 or not self.unit > 0:
            raise InputError("--scenes, --views, --size and --units-per-metre must be positive")
        check_not_negative("--seed", self.seed)
        if not 0 <= self.life <= 1:
            raise InputError(f"--life is a share of the scenes, from 0 to 1, got {self.life}")
        if self.layout not in LAYOUTS:
            raise InputError(f"there is no layout '{self.layout}'; the layouts are {', '.join(LAYOUTS)}")
        if self.kind is not None and self.kind not in KINDS:
            raise InputError(f"there is no scene kind '{self.kind}'; the kinds are {', '.join(KINDS)}")


def write_dataset(
    folder: Path,
    config: WriteConfig,
    assets: Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[Path]:
    """Write all scenes that are not there yet; returns the folders of all."""
    _same_settings(folder / "render.json", config, assets)
    library = None if assets is None else AssetLibrary.open(assets, device)
    done = []
    for number in range(config.scenes):
        scene_folder = folder / f"scene{number:04d}"
        if not (scene_folder / LAYOUTS[config.layout][3]).exists():  # it is written last
            seed = int(generator(config.seed, "write", number).integers(1 << 31))
            lifelike = generator(config.seed, "life", number).random() < config.life
            hard = Difficulties() if lifelike else None
            write_views(scene_folder, make_scene(seed, library, config.kind, device, hard), config)
        done.append(scene_folder)
        if progress is not None:
            progress(number + 1, config.scenes, "scenes")
    return done


def _same_settings(path: Path, config: WriteConfig, assets: Path | None) -> None:
    """Check that a folder was begun with the same settings; the number of scenes may change."""
    settings = {**asdict(config), "assets": None if assets is None else assets.name}
    del settings["scenes"]
    if not config.life:
        del settings["life"]  # so that folders of earlier versions, without this option, can be continued
    if path.exists():
        try:
            stored = read_json(path)
        except FormatError:
            stored = None
        if stored != settings:
            raise InputError(
                f"{path} was written with other settings; choose another folder or remove this one"
            )
        return
    write_json(path, settings)


@torch.no_grad()
def write_views(folder: Path, scene: RenderScene, config: WriteConfig) -> None:
    """Photos, cameras, depth maps and pairs of one scene."""
    images_at, cams_at, depths_at, pairs_at = LAYOUTS[config.layout]
    amounts = Difficulties().drawn(OF_SAMPLES, scene.seed) if scene.difficulties is not None else {}
    rng, size = generator(scene.seed, "path"), (config.width, config.height)
    cameras = draw_path(rng, scene.kind, scene.layout, config.views, *size, Habits.of(amounts))
    on_device = cameras.to(scene.device, torch.float32)
    single = [on_device[v : v + 1] for v in range(config.views)]  # one at a time: memory of one view
    light = torch.cat([render_colour(scene, camera) for camera in single])
    depths = torch.cat([render_depth(scene, camera)[0] for camera in single])
    sensor = SensorConfig(jpeg=0).under(amounts)  # the file is the JPEG
    behind = torch.where(depths > 0, depths, torch.inf)
    photos = expose(light, generator(scene.seed, "photos"), sensor, behind)

    def write_view(number: int) -> View:
        name, depth = f"{number:08d}", depths[number]
        pixels = (photos[number] * 255).round().byte().permute(1, 2, 0).cpu().numpy()
        path = write_image(folder / images_at / f"{name}.jpg", pixels)
        write_pfm(folder / depths_at / f"{name}.pfm", (depth * config.unit).cpu().numpy())
        near, far = (value * config.unit for value in content_range(depth))
        return View(name, in_unit(cameras[number], config.unit), path, DepthRange(near, far))

    with ThreadPoolExecutor(min(_WRITERS, usable_cores()), "write") as pool:
        views = list(pool.map(write_view, range(config.views)))
    sources = rank_by_geometry([v.camera for v in views], [v.depth_range for v in views if v.depth_range])
    views = [
        View(v.name, v.camera, v.image_path, v.depth_range, s) for v, s in zip(views, sources, strict=True)
    ]
    for view in views:
        write_text(folder / cams_at / f"{view.name}_cam.txt", cam_text(view))
    write_text(folder / pairs_at, pair_text(views))
