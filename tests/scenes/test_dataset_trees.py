"""Samples of data sets in their published layouts, on small trees whose geometry is known exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exact_plane import HEIGHT, WIDTH, make_plane_scene

from gbinet.depthmap import DepthMap
from gbinet.formats.image import read_image, write_image
from gbinet.formats.mvsnet import cam_text, pair_text
from gbinet.formats.pfm import write_pfm
from gbinet.scene import Scene, View
from gbinet.scenes import blendedmvs, dtu
from gbinet.scenes.batch import Batch
from gbinet.scenes.dataset import MVSDataset, SampleConfig


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, list[DepthMap]]:
    return make_plane_scene(tmp_path_factory.mktemp("plane"))


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quarter(view: View) -> View:
    return replace(view, camera=view.camera.resized(WIDTH // 4, HEIGHT // 4))


def write_dtu(root: Path, scene: Scene, depth_maps: list[DepthMap], small: bool) -> None:
    """The training set with one scan and two lightings; the second is darker."""
    images = root / ("Rectified/scan2_train" if small else "Rectified_raw/scan2")
    depths = root / ("Depths/scan2_train" if small else "Depths_raw/scan2")
    for number, (view, depth_map) in enumerate(zip(scene.views, depth_maps, strict=True)):
        pixels = read_image(view.image_path)
        for light in (0, 3):
            dark = pixels if light == 3 else pixels // 2
            write_image(images / f"rect_{number + 1:03d}_{light}_r5000.png", dark)
        depth = depth_map.depth.numpy()
        mask = np.ones_like(depth, dtype=bool)
        mask[28:36, 40:52] = False
        step = 4 if small else 1
        write_pfm(depths / f"depth_map_{number:04d}.pfm", depth[step // 2 :: step, step // 2 :: step])
        write_image(depths / f"depth_visual_{number:04d}.png", mask[step // 2 :: step, step // 2 :: step])
        cams = root / "Cameras" / ("train" if small else "")
        write_text(cams / f"{number:08d}_cam.txt", cam_text(quarter(view) if small else view))
    write_text(root / "Cameras" / "pair.txt", pair_text(scene.views))


def write_blended(root: Path, scene: Scene, depth_maps: list[DepthMap]) -> None:
    for number, (view, depth_map) in enumerate(zip(scene.views, depth_maps, strict=True)):
        write_image(root / "blended_images" / f"{number:08d}.jpg", read_image(view.image_path))
        write_text(root / "cams" / f"{number:08d}_cam.txt", cam_text(view))
        write_pfm(root / "rendered_depth_maps" / f"{number:08d}.pfm", depth_map.depth.numpy())
    write_text(root / "cams" / "pair.txt", pair_text(scene.views))


def colour_error(sample: Batch) -> float:
    """Median difference between the reference's colours and the sources', found through the true depth."""
    reference = sample.cameras[0, 0]
    pixels = reference.pixel_grid()[sample.mask[0]]  # [N, 2]
    points = reference.unproject(pixels, sample.depth[0][sample.mask[0]])
    errors = []
    for index in range(1, sample.images.shape[1]):
        source = sample.cameras[0, index]
        where, _ = source.project(points)
        grid = where / torch.tensor([source.width, source.height]) * 2 - 1
        inside = (grid.abs() < 0.95).all(-1)
        image = sample.images[0, index][None]
        found = F.grid_sample(image, grid[None, None], align_corners=False)[0, :, 0].T
        expected = sample.images[0, 0].permute(1, 2, 0)[sample.mask[0]]
        errors.append((found - expected)[inside].abs().flatten())
    return float(torch.cat(errors).median())


SMALL_CROP = SampleConfig(num_views=4, random_sources=True, centre_crop=(88, 64), random_crop=(64, 48))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("config", [SampleConfig(num_views=3), SMALL_CROP, SampleConfig(3, resize=(64, 64))])
def test_dtu_training_set(tmp_path, plane, small, config):
    write_dtu(tmp_path, *plane, small)
    scenes = [dtu.load_scan(tmp_path, 2, light) for light in (3, 0)]
    dataset = MVSDataset(scenes, config)
    assert len(dataset) == 10
    for index in (0, 4, 7):
        sample = dataset[index]
        assert colour_error(sample) < 0.02
        assert sample.mask.float().mean() > 0.8 and not sample.mask.all()
    assert dataset[7].images.mean() < 0.6 * dataset[2].images.mean()  # the darker lighting
    assert dataset[7].names[0].startswith("scan2")


def test_the_check_of_colours_notices_half_a_pixel(tmp_path, plane):
    """Otherwise the tests above would mean nothing."""
    write_dtu(tmp_path, *plane, small=False)
    sample = MVSDataset([dtu.load_scan(tmp_path, 2)], SampleConfig(num_views=3))[2]
    K = sample.cameras.K.clone()
    K[:, 1:, :2, 2] += 0.5
    assert colour_error(replace(sample, cameras=replace(sample.cameras, K=K))) > 2 * colour_error(sample)


def test_blendedmvs_scene(tmp_path, plane):
    write_blended(tmp_path / "5c1f33f1d33e1f2e4aa6dda4", *plane)
    scene = blendedmvs.load_scan(tmp_path, "5c1f33f1d33e1f2e4aa6dda4")
    dataset = MVSDataset([scene], SampleConfig(num_views=5, resize=(80, 56)))
    assert len(dataset) == 5 and dataset[0].images.shape == (1, 5, 3, 56, 80)
    assert all(colour_error(dataset[i]) < 0.03 for i in range(5))
