"""Undistorted images: what is at a pixel is what a known 3D point looks like there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import posed_folders as folders
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gbinet.camera import pixel_centres
from gbinet.errors import FormatError
from gbinet.formats.colmap import ColmapCamera
from gbinet.formats.depth_files import read_depth
from gbinet.formats.image import read_image, read_mask, write_image
from gbinet.scenes import load_scene
from gbinet.scenes.undistort import Photo, Undistorter, undistorted_camera

pycolmap = pytest.importorskip("pycolmap")

WIDTH, HEIGHT = 240, 180


def colour(rays: np.ndarray) -> np.ndarray:
    """A smooth picture painted on the directions of view, [..., 2] -> [..., 3] in 0 to 255."""
    x, y = rays[..., 0], rays[..., 1]
    waves = [np.sin(5 * x + 2 * y), np.cos(6 * y - x), np.sin(4 * (x - y) + 1)]
    return 127.5 + 100 * np.stack(waves, axis=-1)


def rays_of(lens: ColmapCamera) -> np.ndarray:
    """Direction (x/z, y/z) of every pixel of the distorted photo, [H, W, 2]."""
    camera = pycolmap.Camera(
        model=lens.model, width=lens.width, height=lens.height, params=lens.params.tolist()
    )
    grid = pixel_centres(lens.height, lens.width, dtype=torch.float64).reshape(-1, 2).numpy()
    return np.asarray(camera.cam_from_img(grid)).reshape(lens.height, lens.width, 2)


LENSES = {
    "SIMPLE_RADIAL": [200.0, 118, 92, -0.12],
    "OPENCV": [200.0, 205, 118, 92, -0.15, 0.04, 0.002, -0.003],
    "FULL_OPENCV": [200.0, 205, 118, 92, -0.15, 0.04, 0.002, -0.003, 0.01, 0, 0, 0],
    "OPENCV_FISHEYE": [180.0, 182, 121, 89, 0.02, -0.01, 0.0, 0.0],
    "THIN_PRISM_FISHEYE": [180.0, 182, 121, 89, 0.02, -0.01, 0.001, 0.001, 0, 0, 0.001, 0.001],
    "SIMPLE_DIVISION": [200.0, 118, 92, -0.05],
}


def check_content(folder: Path, lens: ColmapCamera) -> None:
    rays = rays_of(lens)
    image = write_image(folder / "photo.png", colour(rays).round().astype(np.uint8))
    mask = write_image(folder / "mask.png", rays[..., 0] > 0)
    photo, pinhole = Undistorter(folder, None).rewrite("photo", Photo(image, mask), lens, stored=False)
    pixels = read_image(photo.image).astype(float)
    assert pixels.shape == (pinhole.height, pinhole.width, 3)
    # Known 3D points: one on each pixel centre of the pinhole image.
    centres = pixel_centres(pinhole.height, pinhole.width, dtype=torch.float64).numpy()
    points = np.concatenate([centres, np.ones((*centres.shape[:2], 1))], -1) @ np.linalg.inv(pinhole.K).T
    inner = (slice(4, -4), slice(4, -4))  # the border mixes with what lies outside
    # The picture changes by up to 100 * 6 / 180 = 3.3 grey values per pixel; a tenth of a pixel is 0.33.
    error = np.abs(pixels - colour(points[..., :2]))[inner]
    assert np.median(error) < 0.5 and error.max() < 2
    assert photo.mask is not None
    keep = read_mask(photo.mask, (pinhole.width, pinhole.height))
    clear = np.abs(points[..., 0]) > 0.01  # two pixels away from the mask's edge
    assert np.array_equal(keep[inner][clear[inner]], (points[..., 0] > 0)[inner][clear[inner]])


@pytest.mark.parametrize("model", LENSES)
def test_content_stays_with_the_points(model: str, tmp_path: Path) -> None:
    check_content(tmp_path, ColmapCamera(1, model, WIDTH, HEIGHT, np.array(LENSES[model])))


@settings(max_examples=15)
@given(
    st.floats(-0.2, 0.2), st.floats(-0.05, 0.05), st.floats(-0.004, 0.004),
    st.floats(150, 300), st.floats(105, 135), st.floats(75, 105),
)  # fmt: skip
def test_content_stays_for_any_mild_lens(
    tmp_path_factory: pytest.TempPathFactory, k1: float, k2: float, p1: float, f: float, cx: float, cy: float
) -> None:
    params = np.array([f, f * 1.01, cx, cy, k1, k2, p1, -p1])
    check_content(tmp_path_factory.mktemp("u"), ColmapCamera(1, "OPENCV", WIDTH, HEIGHT, params))


@pytest.mark.parametrize("kind", ["colmap", "nerfstudio"])
def test_scenes_of_real_lenses_are_undistorted_once(kind: str, tmp_path: Path) -> None:
    if kind == "colmap":
        folders.colmap(tmp_path, camera=(4, [60.0, 61, 31, 25, -0.1, 0.01, 0.001, 0]))
    else:
        folders.nerfstudio(tmp_path, k1=-0.1, k2=0.01, p1=0.001)
    seen: list[str] = []
    scene = load_scene(
        tmp_path, cache=tmp_path / "cache", progress=lambda done, total, what: seen.append(what)
    )
    assert len(seen) == 4
    for view in scene.views:
        assert view.image_path.parent == tmp_path / "cache"
        assert read_image(view.image_path).shape == (view.camera.height, view.camera.width, 3)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}
    again = load_scene(tmp_path, cache=tmp_path / "cache")
    assert [v.image_path for v in again.views] == [v.image_path for v in scene.views]
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()} == before
    # A changed photo gets a new copy.
    changed = sorted((tmp_path / "images").iterdir())[0]
    Image.fromarray(255 - folders.pixels(0)).save(changed)
    third = load_scene(tmp_path, cache=tmp_path / "cache")
    assert third.views[0].image_path != scene.views[0].image_path
    assert third.views[1].image_path == scene.views[1].image_path


def test_cache_lies_in_the_scene_or_in_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.colmap(tmp_path / "a", camera=(2, [60.0, 31, 25, 0.05]))
    scene = load_scene(tmp_path / "a")
    assert scene.views[0].image_path.parent == tmp_path / "a" / ".gbinet_cache"

    folders.colmap(tmp_path / "b", camera=(2, [60.0, 31, 25, 0.05]))
    (tmp_path / "b" / ".gbinet_cache").write_text("a file where the folder should be")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    scene = load_scene(tmp_path / "b")
    assert scene.views[0].image_path.is_relative_to(tmp_path / "temporary")


def test_depth_goes_through_the_same_map(tmp_path: Path) -> None:
    lens = ColmapCamera(1, "OPENCV", WIDTH, HEIGHT, np.array(LENSES["OPENCV"]))
    rays = rays_of(lens)
    image = write_image(tmp_path / "photo.png", np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    depth = write_image(tmp_path / "depth.png", (3000 + 1000 * rays[..., 0]).round().astype(np.uint16))
    photo, pinhole = Undistorter(tmp_path, None).rewrite(
        "photo", Photo(image, None, depth, 0.001), lens, stored=False
    )
    assert photo.depth is not None and photo.depth_scale == 1.0
    values = read_depth(photo.depth)
    centres = pixel_centres(pinhole.height, pinhole.width, dtype=torch.float64).numpy()
    expected = (3 + (centres[..., 0] - pinhole.K[0, 2]) / pinhole.K[0, 0])[4:-4, 4:-4]
    assert np.abs(values[4:-4, 4:-4] - expected).max() < 0.006  # nearest: up to a pixel, 1/200


@pytest.mark.parametrize(
    "params",
    [[1e-3, 1, 1, 0.1], [200.0, 118, 92, 1e9], [1e12, 118, 92, 0.1]],
)
def test_impossible_lenses_are_refused(params: list[float], tmp_path: Path) -> None:
    lens = ColmapCamera(1, "SIMPLE_RADIAL", WIDTH, HEIGHT, np.array(params))
    with pytest.raises(FormatError, match=r"photo\.jpg.*not a real lens"):
        undistorted_camera(tmp_path / "photo.jpg", lens)


def test_an_undistorted_photo_follows_the_bytes_of_its_photo(tmp_path: Path) -> None:
    """Not size or time: other pixels are undistorted anew; a touched or copied photo is found again."""
    lens = ColmapCamera(1, "SIMPLE_RADIAL", 32, 24, np.array([30.0, 16.0, 12.0, 0.05]))
    path = tmp_path / "photo.bmp"
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)

    def rewritten(image: Path) -> Path:
        undistorter = Undistorter(tmp_path, tmp_path / "cache")
        made, _ = undistorter.rewrite("photo", Photo(image), lens, stored=False)
        undistorter.save_hashes()
        return made.image

    first, before = rewritten(path), path.stat()
    os.utime(path)
    (tmp_path / "copy").mkdir()
    shutil.copy(path, tmp_path / "copy" / "photo.bmp")
    assert rewritten(path) == rewritten(tmp_path / "copy" / "photo.bmp") == first
    Image.fromarray(255 - pixels).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = rewritten(path)
    assert path.stat().st_size == before.st_size and second != first
    assert not np.array_equal(read_image(second), read_image(first))


def test_a_mask_that_cannot_be_read_costs_its_view(tmp_path: Path) -> None:
    folder = folders.colmap(tmp_path, camera=(2, [60.0, 31.0, 25.0, 0.05]))  # SIMPLE_RADIAL
    (folder / "masks").mkdir()
    (folder / "masks" / "photo_01.png.png").write_bytes(b"no picture")
    scene = load_scene(folder)
    assert [view.name for view in scene.views] == ["photo_00", "photo_02", "photo_03"]
    assert any("left out photo_01.png" in warning for warning in scene.warnings)
