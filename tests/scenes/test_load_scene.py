"""Every shape of folder becomes the same scene; what is missing is filled in and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import posed_folders as folders
import pytest
import torch
from PIL import Image

import gbinet
from gbinet.camera import Camera
from gbinet.errors import GBiNetError, SceneError
from gbinet.formats.image import read_image, read_mask
from gbinet.scene import DepthRange
from gbinet.scenes import list_photos, load_scene
from gbinet.scenes.posed import unique_names

SHAPES: dict[str, Callable[[Path], Path]] = {
    "mvsnet": folders.mvsnet,
    "blendedmvs": folders.blendedmvs,
    "colmap": folders.colmap,
    "nerfstudio": folders.nerfstudio,
    "rgbd": folders.rgbd,
}


@pytest.mark.parametrize("kind", SHAPES)
def test_every_shape_is_recognised_and_gives_the_same_cameras(kind: str, tmp_path: Path) -> None:
    scene = load_scene(SHAPES[kind](tmp_path / "my scene"))
    folders.check(scene)
    assert (scene.kind, scene.name, scene.root) == (kind, "my scene", tmp_path / "my scene")
    assert load_scene(str(tmp_path / "my scene"), kind=kind).kind == kind
    for index, view in enumerate(scene.views):
        assert np.abs(view.camera.cam_from_world.numpy() - folders.cam_from_world(index)).max() < 1e-9
        assert np.array_equal(view.camera.K.numpy(), folders.K)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_user_overrides_the_range(kind: str, tmp_path: Path) -> None:
    given = DepthRange(1.25, 7.5)
    scene = load_scene(SHAPES[kind](tmp_path), depth_range=given)
    assert {view.depth_range for view in scene.views} == {given}
    assert not any("range" in warning for warning in scene.warnings)


def test_public_name() -> None:
    assert gbinet.load_scene is load_scene


# ---- COLMAP ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["sparse/0", "sparse", ".", "colmap/sparse/0"])
def test_places_of_a_colmap_model(place: str, tmp_path: Path) -> None:
    scene = load_scene(folders.colmap(tmp_path, place=place))
    folders.check(scene)
    assert scene.kind == "colmap" and scene.points is not None and len(scene.points.xyz) == 200
    assert scene.warnings == ()
    view = scene.views[0]
    assert view.depth_range is not None and view.depth_range.near < 3.5 and 4.5 < view.depth_range.far < 15


def test_the_model_folder_itself_finds_images_above(tmp_path: Path) -> None:
    folders.colmap(tmp_path)
    assert len(load_scene(tmp_path / "sparse" / "0").views) == 4


def test_images_of_a_colmap_model_must_be_there(tmp_path: Path) -> None:
    folders.colmap(tmp_path)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    with pytest.raises(SceneError, match=r"photo_00\.png"):
        load_scene(tmp_path)


def test_a_missing_photo_costs_only_its_view(tmp_path: Path) -> None:
    folders.colmap(tmp_path)
    (tmp_path / "images" / "photo_00.png").unlink()  # the first one, which the folder is known by
    scene = load_scene(tmp_path)
    folders.check(scene)
    assert len(scene.views) == 3 and "photo_00.png" in scene.warnings[0]


def test_resized_copies_scale_the_camera(tmp_path: Path) -> None:
    folders.colmap(tmp_path, camera=(1, [120.0, 122.0, 62.0, 50.0]), size=(128, 96))
    scene = load_scene(tmp_path)
    folders.check(scene)
    assert np.allclose(scene.views[0].camera.K.numpy(), folders.K)
    assert any("resized" in w for w in scene.warnings)
    folders.colmap(tmp_path / "wrong", size=(100, 100))
    with pytest.raises(SceneError, match="100x100"):
        load_scene(tmp_path / "wrong")


def test_sub_folders_give_unique_names(tmp_path: Path) -> None:
    names = ["left/01.png", "right/01.png"]
    for name in names:
        folders.write_images(tmp_path / "images" / Path(name).parent, 1, "01.png")
    scene = load_scene(folders.colmap(tmp_path, 2, image_names=names))
    assert [view.name for view in scene.views] == ["left_01", "right_01"]
    assert unique_names(["a.jpg", "a.png", "b.jpg", "./c/d.jpg", "../c/d.jpg"]) == [
        "a_jpg", "a_png", "b", "c_d_jpg", "c_d_jpg_2",
    ]  # fmt: skip
    assert unique_names(["images/x/1.png", "images/y/1.png"]) == ["x_1", "y_1"]
    assert unique_names(["./images/1.png", "images/2.png"]) == ["1", "2"]


# ---- orientation -------------------------------------------------------------------------------------------

CORNERS = torch.tensor([[-0.5, -0.3, 4.0], [0.6, 0.2, 4.2], [0.1, 0.4, 3.8]], dtype=torch.float64)


def rotate_all(folder: Path, orientation: int) -> None:
    """Mark the photos as turned, pixels as they are: what a phone does."""
    for path in folder.iterdir():
        exif = Image.Exif()
        exif[0x0112] = orientation
        with Image.open(path) as image:
            image.save(path, exif=exif)


@pytest.mark.parametrize("kind", ["colmap", "nerfstudio"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("masked", [False, True])
def test_cameras_follow_exif_orientation(kind: str, orientation: int, masked: bool, tmp_path: Path) -> None:
    """Where a point falls, the upright image shows what the stored pixels show there."""
    SHAPES[kind](tmp_path)
    stored_pixels = {p.stem: read_image(p) for p in sorted((tmp_path / "images").iterdir())}
    rotate_all(tmp_path / "images", orientation)
    if masked:
        (tmp_path / "masks").mkdir()
        for stem, pixels in stored_pixels.items():
            Image.fromarray(pixels[..., 0] > 128).save(tmp_path / "masks" / f"{stem}.png")
    scene = load_scene(tmp_path)
    folders.check(scene)
    for index, view in enumerate(scene.views):
        stored = Camera(torch.from_numpy(folders.K), torch.from_numpy(folders.cam_from_world(index)), 64, 48)
        there, depth = stored.project(CORNERS)
        here, depth_here = view.camera.project(CORNERS)
        assert torch.allclose(depth, depth_here)
        upright = read_image(view.image_path)
        for (x, y), (u, v) in zip(there.floor().int().tolist(), here.floor().int().tolist(), strict=True):
            assert np.array_equal(upright[v, u], stored_pixels[view.name][y, x])
            if view.mask_path is not None:
                mask = read_mask(view.mask_path, (view.camera.width, view.camera.height))
                assert mask[v, u] == (stored_pixels[view.name][y, x, 0] > 128)


def test_a_camera_made_for_the_upright_image_stays(tmp_path: Path) -> None:
    folders.colmap(tmp_path, camera=(1, [60.0, 61.0, 25.0, 31.0]), size=(48, 64))
    rotate_all(tmp_path / "images", 6)
    scene = load_scene(tmp_path)
    folders.check(scene)
    assert (scene.views[0].camera.width, scene.views[0].camera.height) == (48, 64)
    assert np.array_equal(scene.views[0].camera.K.numpy(), [[60, 0, 25], [0, 61, 31], [0, 0, 1]])


# ---- masks, alpha, depth -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["masks/{stem}.png", "masks/{name}.png", "mask/{stem}.jpg", "masks/{name}", "images/{stem}_mask.png"],
)
def test_masks_are_found(name: str, tmp_path: Path) -> None:
    folders.mvsnet(tmp_path)
    for path in sorted((tmp_path / "images").iterdir()):
        target = tmp_path / name.format(stem=path.stem, name=path.name)
        target.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((48, 64), 255, np.uint8)).save(target)
    scene = load_scene(tmp_path)
    folders.check(scene)
    assert len(scene.views) == 4 and all(view.mask_path is not None for view in scene.views)


def test_masks_from_a_folder_of_the_user(tmp_path: Path) -> None:
    folders.nerfstudio(tmp_path / "scene")
    folders.write_images(tmp_path / "mine", 4, "frame_{:05d}.png")
    scene = load_scene(tmp_path / "scene", masks=tmp_path / "mine")
    assert [v.mask_path for v in scene.views] == sorted((tmp_path / "mine").iterdir())
    with pytest.raises(SceneError, match="no such folder"):
        load_scene(tmp_path / "scene", masks=tmp_path / "absent")


def test_alpha_is_the_mask(tmp_path: Path) -> None:
    folders.nerfstudio(tmp_path)
    for path in (tmp_path / "images").iterdir():
        with Image.open(path) as image:
            image.putalpha(255)
            image.save(path)
    scene = load_scene(tmp_path)
    folders.check(scene)
    assert all(view.mask_path == view.image_path for view in scene.views)


def test_nerfstudio_masks_depth_and_points(tmp_path: Path) -> None:
    folders.nerfstudio(tmp_path, ply_file_path="points.ply", depth_unit_scale_factor=0.01)
    contents = json.loads((tmp_path / "transforms.json").read_text())
    contents["frames"][0]["mask_path"] = "m.png"
    contents["frames"][0]["depth_file_path"] = "d.png"
    contents["frames"][1]["mask_path"] = "absent.png"
    (tmp_path / "transforms.json").write_text(json.dumps(contents))
    for name in ("m.png", "d.png"):
        Image.fromarray(np.full((48, 64), 255, np.uint8)).save(tmp_path / name)
    rows = "\n".join(" ".join(map(str, p)) for p in folders.points())
    header = "ply\nformat ascii 1.0\nelement vertex 200\n"
    header += "".join(f"property float {axis}\n" for axis in "xyz") + "end_header\n"
    (tmp_path / "points.ply").write_text(header + rows + "\n")
    scene = load_scene(tmp_path)
    folders.check(scene)
    first, second = scene.views[:2]
    assert first.mask_path == tmp_path / "m.png" and second.mask_path is None
    assert (first.depth_path, first.depth_scale) == (tmp_path / "d.png", 0.01)
    assert any("absent.png" in w for w in scene.warnings)
    assert scene.points is not None and first.depth_range is not None and first.depth_range.far < 15


def test_blender_style_files_name_images_without_suffix(tmp_path: Path) -> None:
    folders.nerfstudio(tmp_path)
    contents = json.loads((tmp_path / "transforms.json").read_text())
    for frame in contents["frames"]:
        frame["file_path"] = "./" + frame["file_path"].removesuffix(".png")
    angle = 2 * np.arctan(0.5 * 64 / 60)
    (tmp_path / "transforms.json").unlink()
    (tmp_path / "transforms_train.json").write_text(
        json.dumps({"camera_angle_x": angle, "frames": contents["frames"]})
    )
    scene = load_scene(tmp_path)
    folders.check(scene)
    assert np.allclose(scene.views[0].camera.K.numpy(), [[60, 0, 32], [0, 60, 24], [0, 0, 1]])


def test_rgbd_ranges_come_from_measured_depth(tmp_path: Path) -> None:
    view = load_scene(folders.rgbd(tmp_path)).views[0]
    assert view.depth_scale == 0.001 and view.depth_range is not None
    assert 3 < view.depth_range.near < 4 < view.depth_range.far < 5


def test_lost_poses_of_rgbd_are_left_out(tmp_path: Path) -> None:
    folders.rgbd(tmp_path)
    lines = (tmp_path / "poses.txt").read_text().split("\n")
    lines[1] = " ".join(["nan"] * 16)
    (tmp_path / "poses.txt").write_text("\n".join(lines))
    scene = load_scene(tmp_path)
    assert [v.name for v in scene.views] == ["00000", "00002", "00003"]
    (tmp_path / "poses.txt").write_text("\n".join(lines[:2]))
    with pytest.raises(SceneError, match="2 poses"):
        load_scene(tmp_path)


# ---- no scene ----------------------------------------------------------------------------------------------


def test_bare_photos_say_what_is_missing(tmp_path: Path) -> None:
    folders.write_images(tmp_path, 3, "IMG_{:04d}.JPG")
    Image.fromarray(folders.pixels(0)).save(tmp_path / "IMG_0001_mask.png")
    assert [p.name for p in list_photos(tmp_path)] == ["IMG_0000.JPG", "IMG_0001.JPG", "IMG_0002.JPG"]
    with pytest.raises(SceneError, match=r"3 photos without camera poses.*gbinet reconstruct"):
        load_scene(tmp_path)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="no such folder"):
        load_scene(tmp_path / "absent")
    with pytest.raises(SceneError, match="is not a scene"):
        load_scene(tmp_path)
    with pytest.raises(SceneError, match="'foo' is not a kind"):
        load_scene(folders.mvsnet(tmp_path), kind="foo")
    for kind in ("colmap", "nerfstudio"):
        with pytest.raises(GBiNetError):
            load_scene(tmp_path, kind=kind)


# ---- the real scenes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "views", "size"),
    [
        ("dtu_scan37", "mvsnet", 49, (1600, 1200)),
        ("fountain-P11", "colmap", 11, (1536, 1024)),
        ("hololens-000", "rgbd", 32, (540, 360)),
    ],
)
def test_shared_scenes(shared: Path, name: str, kind: str, views: int, size: tuple[int, int]) -> None:
    scene = load_scene(shared / "scenes" / name)
    folders.check(scene)
    assert (scene.kind, len(scene.views)) == (kind, views)
    assert {(v.camera.width, v.camera.height) for v in scene.views} == {size}
    if name == "dtu_scan37":
        assert {v.depth_range for v in scene.views} == {DepthRange(425, 935)}
    if name == "fountain-P11":
        assert scene.points is not None and len(scene.points.xyz) == 13_974
    assert scene.warnings == ()


def test_shared_photos_need_poses(shared: Path) -> None:
    with pytest.raises(SceneError, match="11 photos"):
        load_scene(shared / "scenes" / "sceaux-castle-photos")
