"""A scene's files name files of the scene, and of the folder that the user gave; nothing else is read."""

from __future__ import annotations

import json
from pathlib import Path

import posed_folders as folders
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gbinet.cli.main import main
from gbinet.errors import FormatError, SceneError
from gbinet.formats.allowed_folders import AllowedFolders
from gbinet.formats.meshlab import read_meshlab
from gbinet.scenes import load_scene


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A photo beside the scene that the scene has no business with."""
    folder = tmp_path / "secret"
    folder.mkdir()
    Image.fromarray(folders.pixels(7)).save(folder / "private.png")
    return folder


def colmap(tmp_path: Path, *more: str) -> Path:
    scene = tmp_path / "scene"
    names = folders.write_images(scene / "images", 3, "photo_{:02d}.png")
    return folders.colmap(scene, 3 + len(more), image_names=[*names, *more])


def nerfstudio(tmp_path: Path, **frame: str) -> Path:
    scene = folders.nerfstudio(tmp_path / "scene", 4)
    content = json.loads((scene / "transforms.json").read_text())
    content["frames"][3].update(frame)
    (scene / "transforms.json").write_text(json.dumps(content))
    return scene


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("kind", ["colmap", "nerfstudio"])
def test_photos_elsewhere_need_the_flag(
    kind: str, absolute: bool, tmp_path: Path, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    up = "../../secret" if kind == "colmap" else "../secret"
    name = f"{secret if absolute else up}/private.png"
    scene = colmap(tmp_path, name) if kind == "colmap" else nerfstudio(tmp_path, file_path=name)
    out = tmp_path / "out"
    assert main(["convert", str(scene), str(out), "--to", "mvsnet"]) == 0
    assert len(list((out / "images").iterdir())) == 3
    said = capsys.readouterr().out
    assert "private.png" in said and "lies outside" in said and "--images" in said
    images = secret if kind == "nerfstudio" else tmp_path / "all"
    if kind == "colmap":  # all names are relative to the given folder
        images.symlink_to(scene / "images")
        Image.fromarray(folders.pixels(7)).save(images / "private.png")
    assert main(["info", str(scene), "--images", str(images)]) == 0
    assert "lies outside" not in capsys.readouterr().out


def test_a_scene_of_nothing_but_foreign_photos_is_refused(tmp_path: Path, secret: Path) -> None:
    scene = folders.colmap(tmp_path / "scene", 1, image_names=[f"{secret}/private.png"])
    with pytest.raises(SceneError, match=r"lies outside .*--images .*secret"):
        load_scene(scene)
    assert len(load_scene(scene, images=secret).views) == 1


@pytest.mark.parametrize("key", ["mask_path", "depth_file_path"])
def test_masks_and_depth_elsewhere_are_left_out(key: str, tmp_path: Path, secret: Path) -> None:
    scene = load_scene(nerfstudio(tmp_path, **{key: "../secret/private.png"}))
    assert scene.views[3].mask_path is None and scene.views[3].depth_path is None
    assert any("lies outside" in warning and "--images" in warning for warning in scene.warnings)


def test_a_cloud_elsewhere_is_left_out(tmp_path: Path, secret: Path) -> None:
    scene = load_scene(folders.nerfstudio(tmp_path / "scene", ply_file_path="../secret/a.ply"))
    assert scene.points is None and any("lies outside" in warning for warning in scene.warnings)


def test_links_that_lie_in_the_scene_are_followed(tmp_path: Path) -> None:
    scene = colmap(tmp_path)
    (scene / "images").rename(tmp_path / "photos")
    (scene / "images").symlink_to(tmp_path / "photos")
    assert len(load_scene(scene).views) == 3
    link = scene / "images" / "photo_00.png"
    link.rename(tmp_path / "first.png")
    link.symlink_to(tmp_path / "first.png")
    assert len(load_scene(scene).views) == 3


def test_dots_that_end_inside_are_fine_and_links_do_not_help_them_out(tmp_path: Path, secret: Path) -> None:
    scene = nerfstudio(tmp_path, file_path="images/../images/frame_00003.png")
    assert len(load_scene(scene).views) == 4
    (scene / "deep").symlink_to(secret / "deeper")
    (secret / "deeper").mkdir()
    assert not AllowedFolders(scene).contains(scene / "deep" / ".." / "private.png")
    assert AllowedFolders(scene).contains(scene / "x" / ".." / "private.png")


@given(st.lists(st.sampled_from(["..", "a", ".", "b", ""]), max_size=6))
def test_inside_is_where_the_path_ends(parts: list[str]) -> None:
    """Without links, a path is inside exactly if it never rises above the folder in the end."""
    depth = 0
    for part in parts:
        depth += {"..": -1, "a": 1, "b": 1}.get(part, 0)
        if depth < 0:  # once above, `a` is another folder's
            depth = -100
    root = Path("/nowhere/at/all/scene")
    assert AllowedFolders(root).contains(root / "/".join(parts).lstrip("/")) == (depth >= 0)


@pytest.mark.parametrize("make", [folders.mvsnet, folders.rgbd, folders.blendedmvs])
def test_photos_of_the_given_folder_are_taken(make: object, tmp_path: Path) -> None:
    scene = make(tmp_path / "scene")  # type: ignore[operator]
    own = next(p for p in (scene / "images", scene / "blended_images") if p.is_dir())
    moved = tmp_path / "elsewhere"
    before = load_scene(scene)
    moved.mkdir()
    for photo in own.iterdir():
        photo.rename(moved / photo.name)
    with pytest.raises(SceneError):
        load_scene(scene)
    found = load_scene(scene, images=moved)
    assert [v.name for v in found.views] == [v.name for v in before.views]
    assert all(v.image_path.parent == moved for v in found.views)


def test_a_folder_of_photos_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="--images"):
        load_scene(folders.mvsnet(tmp_path / "scene"), images=tmp_path / "absent")


@pytest.mark.parametrize("name", ["../secret/private.png", "/etc/passwd"])
def test_scans_outside_of_a_project(name: str, tmp_path: Path, secret: Path) -> None:
    path = tmp_path / "scans" / "a.mlp"
    path.parent.mkdir()
    matrix = "1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1"
    mesh = f'<MLMesh filename="{name}"><MLMatrix44>{matrix}</MLMatrix44></MLMesh>'
    path.write_text(f"<MeshLabProject><MeshGroup>{mesh}</MeshGroup></MeshLabProject>")
    with pytest.raises(FormatError, match="lies outside its folder"):
        read_meshlab(path)


def test_one_name_that_is_too_long_costs_one_view(tmp_path: Path) -> None:
    scene = load_scene(colmap(tmp_path, "x" * 300 + ".png"))
    assert len(scene.views) == 3 and any("left out xxx" in warning for warning in scene.warnings)
