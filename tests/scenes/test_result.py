"""What a run leaves is a scene again, for every verb and for other programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker
from oracle import Oracle

from gbinet.cli.main import main
from gbinet.errors import FormatError, GBiNetError
from gbinet.formats.depth_files import read_depth, read_depth_camera
from gbinet.formats.ply import read_ply
from gbinet.fusion.fuse import FusedView, FusionConfig
from gbinet.fusion.mesh import Mesher
from gbinet.inference.predictor import DepthConfig
from gbinet.pipeline.reconstruct import ReconstructConfig, run
from gbinet.scene import Scene
from gbinet.scenes import result as result_file
from gbinet.scenes.load import load_scene
from gbinet.scenes.result import write_result

CONFIG = ReconstructConfig(DepthConfig(max_size=64, views=3), FusionConfig(min_views=2))


@pytest.fixture
def result(ball_scene: SceneMaker, tmp_path: Path) -> tuple[Scene, Path]:
    scene = ball_scene()
    run(scene, Oracle(scene), tmp_path / "out", CONFIG)  # type: ignore[arg-type]
    return scene, tmp_path / "out"


def gbinet(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def assert_same_cameras(scene: Scene, other: Scene) -> None:
    assert len(scene.views) == len(other.views)
    for one, two in zip(scene.views, other.views, strict=True):
        assert (one.camera.width, one.camera.height) == (two.camera.width, two.camera.height)
        assert torch.allclose(one.camera.K, two.camera.K, rtol=0, atol=1e-6)
        assert torch.allclose(one.camera.cam_from_world, two.camera.cam_from_world, rtol=0, atol=1e-6)


def test_the_result_is_the_scene_that_it_came_from(result: tuple[Scene, Path]) -> None:
    scene, out = result
    again = load_scene(out)
    assert again.kind == "gbinet" and again.name == scene.name
    assert_same_cameras(scene, again)
    for one, two in zip(scene.views, again.views, strict=True):
        assert (one.name, one.depth_range, one.sources) == (two.name, two.depth_range, two.sources)
        assert two.image_path.is_relative_to(out) and two.image_path.samefile(one.image_path)


@pytest.mark.parametrize("to", ["colmap", "colmap-text", "colmap-dense", "nerfstudio", "mvsnet"])
def test_other_programs_get_the_same_cameras(result: tuple[Scene, Path], tmp_path: Path, to: str) -> None:
    _, out = result
    assert gbinet("convert", out, tmp_path / to, "--to", to) == 0
    assert_same_cameras(load_scene(out), load_scene(tmp_path / to))


def test_openmvs_gets_the_same_cameras(result: tuple[Scene, Path], tmp_path: Path) -> None:
    """Its own depth maps hold them; pixels are counted from the centre of the first one there."""
    from gbinet.formats.openmvs import read_dmap

    scene, out = result
    assert gbinet("convert", out, tmp_path / "openmvs", "--to", "openmvs") == 0
    files = sorted((tmp_path / "openmvs").glob("*.dmap"))
    assert len(files) == len(scene.views)
    for index, path in enumerate(files):
        found, own = read_dmap(path), scene.views[index].camera
        assert np.allclose(found.depth, read_depth(out / "depth" / f"{scene.views[index].name}.npz"))
        assert torch.allclose(found.image_camera.cam_from_world, own.cam_from_world, rtol=0, atol=1e-6)
        assert torch.allclose(found.image_camera.K, own.K, rtol=0, atol=1e-6)


def test_verbs_read_the_result(result: tuple[Scene, Path], tmp_path: Path, capsys) -> None:
    scene, out = result
    assert gbinet("info", out) == 0
    assert "result of gbinet" in capsys.readouterr().out
    assert gbinet("fuse", out, "-o", tmp_path / "again.ply", "--min-views", 2) == 0
    assert len(read_ply(tmp_path / "again.ply")) == len(read_ply(out / "cloud.ply"))
    moved = tmp_path / "elsewhere"
    shutil.move(out, moved)
    assert_same_cameras(scene, load_scene(moved))


def test_a_broken_photo_costs_one_view(result: tuple[Scene, Path]) -> None:
    scene, out = result
    scene.views[1].image_path.write_bytes(b"broken")
    again = load_scene(out)
    assert [view.name for view in again.views] == [v.name for v in scene.views if v is not scene.views[1]]
    assert any("left out 001" in text and "001.png" in text for text in again.warnings)
    for view in again.views:
        assert again.views[view.sources[0].index].name != view.name


class _NoMesh(Mesher):
    """Finds no surface."""

    def __init__(self, *_: object) -> None: ...

    def add(self, fused: FusedView) -> None: ...

    def write(self, cloud: Path, mesh: Path) -> tuple[Path, ...]:
        raise GBiNetError("there is no surface")


def test_a_mesh_that_fails_does_not_hide_the_notes(
    result: tuple[Scene, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = result
    load_scene(out).views[1].image_path.unlink()
    monkeypatch.setattr("gbinet.cli.fuse.Mesher", _NoMesh)
    assert gbinet("fuse", out, "-o", out / "again.ply", "--mesh", "tsdf") == 2
    said = capsys.readouterr()
    assert "there is no surface" in said.err and "note: left out" in said.out


def test_a_depth_map_holds_its_camera_and_photo(result: tuple[Scene, Path]) -> None:
    """With nothing but two .npz files, depth of one falls onto the depth of the other."""
    scene, out = result
    files = [out / "depth" / f"{view.name}.npz" for view in scene.views[:2]]
    one, two = (read_depth_camera(path) for path in files)
    assert one is not None and two is not None
    assert torch.equal(one.cam_from_world, scene.views[0].camera.cam_from_world)
    assert str(np.load(files[0])["photo"]) == scene.views[0].image_path.name
    depths = [torch.from_numpy(read_depth(path)).double() for path in files]
    known = depths[0] > 0
    points = one.unproject(one.pixel_grid()[known], depths[0][known])
    pixels, z = two.project(points)
    inside = (z > 0) & (pixels >= 0).all(-1) & (pixels[:, 0] < two.width) & (pixels[:, 1] < two.height)
    at = pixels[inside].long()
    there = depths[1][at[:, 1], at[:, 0]]
    assert float(((there - z[inside]).abs() < 0.05 * z[inside])[there > 0].double().mean()) > 0.8


def test_nothing_outside_is_named_and_nothing_else_replaced(result: tuple[Scene, Path]) -> None:
    scene, out = result
    content = json.loads((out / "scene.json").read_text())
    assert all(not Path(v["photo"]).is_absolute() and ".." not in v["photo"] for v in content["views"])
    write_result(scene, out)  # its own links are made anew
    link = out / content["views"][0]["photo"]
    link.unlink()
    link.write_text("mine")
    with pytest.raises(GBiNetError, match="not written by gbinet"):
        write_result(scene, out)
    assert link.read_text() == "mine"


class _Stopped(BaseException):
    """Ctrl-C, at a moment that a test chooses."""


def _refuse_links(*_: object, **__: object) -> None:
    raise OSError("no links here")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("made", range(5))
def test_a_run_stopped_among_the_photos_goes_on(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool, made: int
) -> None:
    """Stopped after any number of links or copies, or as the record is written; then again, twice."""
    scene, out = ball_scene(views=3), tmp_path / "out"
    if not links:
        monkeypatch.setattr(Path, "symlink_to", _refuse_links)
    left = made

    def stop(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise _Stopped
            left -= 1
            return function(*args, **options)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(result_file, "write_json", stop(result_file.write_json))
        if links:
            patch.setattr(Path, "symlink_to", stop(Path.symlink_to))
        else:
            patch.setattr(shutil, "copyfile", stop(shutil.copyfile))
        with suppress(_Stopped):
            write_result(scene, out)
    for _ in range(2):
        write_result(scene, out)
        views = load_scene(out).views
        assert [v.name for v in views] == [v.name for v in scene.views]
        for one, two in zip(scene.views, views, strict=True):
            assert one.image_path.read_bytes() == two.image_path.read_bytes()
            assert two.image_path.is_symlink() == links
    write_result(replace(scene, views=scene.views[:1]), out)
    assert len(list((out / "photos").iterdir())) == 1  # what it recorded, and needs no more, is gone


def test_a_changed_copy_is_not_replaced(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "symlink_to", _refuse_links)
    scene, out = ball_scene(views=3), tmp_path / "out"
    write_result(scene, out)
    copy = load_scene(out).views[0].image_path
    copy.write_text("mine")
    with pytest.raises(GBiNetError, match="not written by gbinet"):
        write_result(scene, out)
    assert copy.read_text() == "mine"


@pytest.mark.parametrize("change", [{"K": [[1, 2], [3]]}, {"photo": "../../secret.png"}, {"sources": [[0]]}])
def test_hostile_files_are_refused(result: tuple[Scene, Path], change: dict[str, object]) -> None:
    _, out = result
    content = json.loads((out / "scene.json").read_text())
    content["views"][0] |= change
    (out / "scene.json").write_text(json.dumps(content))
    with pytest.raises(FormatError):
        load_scene(out)
