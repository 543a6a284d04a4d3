"""Output folders: apart from the scene, one run at a time, nothing left by those that were killed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from ball_scene import SceneMaker
from oracle import Oracle
from PIL import Image, ImageOps

from gbinet.errors import GBiNetError, InputError
from gbinet.inference.predictor import DepthConfig
from gbinet.pipeline.output import is_output_folder, output_folder
from gbinet.pipeline.reconstruct import ReconstructConfig, run
from gbinet.scene import Scene
from gbinet.scenes.kinds import write_scene

CONFIG = ReconstructConfig(depth=DepthConfig(views=3))


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("scene", "is the scene itself"),
        ("scene/depth", "in a folder 'depth'"),
        ("scene/depth/new/out", "in a folder 'depth'"),
        ("scene/images", "in a folder 'images'"),
        ("scene/cams_1", "in a folder 'cams_1'"),
        ("scene/../scene/.", "is the scene itself"),
        ("scene/x/../rendered_depth_maps", "in a folder 'rendered_depth_maps'"),
    ],
)
def test_a_place_where_readers_look_is_refused(tmp_path: Path, out: str, why: str) -> None:
    (tmp_path / "scene").mkdir()
    with (
        pytest.raises(InputError, match=f"{why}.*choose another folder"),
        output_folder(tmp_path / out, tmp_path / "scene"),
    ):
        pass
    assert list((tmp_path / "scene").iterdir()) == []


@pytest.mark.parametrize("out", ["out", "scene/result", "scene/results/first", "sce"])
def test_other_places_are_fine(tmp_path: Path, out: str) -> None:
    (tmp_path / "scene").mkdir()
    with output_folder(tmp_path / out, tmp_path / "scene"):
        assert is_output_folder(tmp_path / out)


def test_a_scene_among_results_is_refused_and_beside_them_fine(tmp_path: Path) -> None:
    for name in ("depth", "export/colmap", "undistorted", "photos", "masks"):
        with pytest.raises(InputError, match="where results go"), output_folder(tmp_path, tmp_path / name):
            pass
        with (
            pytest.raises(InputError, match="where results go"),
            output_folder(tmp_path, tmp_path / "scene", None, tmp_path / name),
        ):
            pass
    for name in ("scene", "pictures", "sfm"):
        with output_folder(tmp_path, tmp_path / name):
            pass


def test_a_link_does_not_hide_the_scene(tmp_path: Path) -> None:
    (tmp_path / "scene").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "scene")
    with (
        pytest.raises(InputError, match="is the scene itself"),
        output_folder(tmp_path / "link", tmp_path / "scene"),
    ):
        pass


def test_no_results_are_put_among_photos_behind_a_link(tmp_path: Path) -> None:
    """`-o .` beside a link `photos`: undistorted copies would become photos of the next run."""
    (tmp_path / "camera").mkdir()
    (tmp_path / "photos").symlink_to(tmp_path / "camera")
    with pytest.raises(InputError, match="where results go"), output_folder(tmp_path, tmp_path / "photos"):
        pass


def test_a_scene_with_our_results_in_it_is_read_as_before(ball_scene: SceneMaker, tmp_path: Path) -> None:
    """A second run sees the same scene as the first, wherever the first one wrote."""
    folder = write_scene(ball_scene(), tmp_path / "scene", "mvsnet")
    scene = ball_scene()
    for _ in range(2):
        result = run(folder, Oracle(scene), folder / "result", CONFIG)  # type: ignore[arg-type]
        assert all(view.depth_path is None for view in result.scene.views)
    assert len(result.depth.kept) == 5


def test_a_refused_run_changes_nothing(ball_scene: SceneMaker, tmp_path: Path) -> None:
    """Refused for its settings or its photos, and in another frame at that."""
    scene, moved = ball_scene(), ball_scene(shift=(1, 0, 0))
    other = _with_other_photos(moved, tmp_path / "other")
    run(scene, Oracle(scene), tmp_path / "out", CONFIG)  # type: ignore[arg-type]
    before = _bytes_in(tmp_path / "out")
    for given, config in ((moved, ReconstructConfig(depth=DepthConfig(views=4))), (other, CONFIG)):
        with pytest.raises(GBiNetError, match="choose another output folder"):
            run(given, Oracle(given), tmp_path / "out", config)  # type: ignore[arg-type]
        assert _bytes_in(tmp_path / "out") == before


def test_a_run_refused_for_a_file_among_the_photos_changes_nothing(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    """Not a depth map goes, though all of them are of other cameras or settings; nor a link."""
    scene, out = ball_scene(), tmp_path / "out"
    run(scene, Oracle(scene), out, CONFIG)  # type: ignore[arg-type]
    mine = next((out / "photos").iterdir())
    mine.unlink()
    mine.write_text("mine")
    before = _bytes_in(out)
    for given, views in ((ball_scene(shift=(1, 0, 0)), 3), (scene, 4)):
        config = ReconstructConfig(depth=DepthConfig(views=views))
        with pytest.raises(GBiNetError, match="was not written by gbinet"):
            run(given, Oracle(given), out, config, overwrite=True)  # type: ignore[arg-type]
        assert _bytes_in(out) == before


def _with_other_photos(scene: Scene, folder: Path) -> Scene:
    folder.mkdir()
    for view in scene.views:
        ImageOps.mirror(Image.open(view.image_path)).save(folder / view.image_path.name)
    views = tuple(replace(view, image_path=folder / view.image_path.name) for view in scene.views)
    return replace(scene, views=views, root=folder)


def _bytes_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_leftovers_of_killed_runs_go(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene, out = ball_scene(), tmp_path / "out"
    left = [f"{place}/.gbinet-tmp-0123abcd-x" for place in (".", "depth", "export/colmap/images", "sfm")]
    for name in (*left, "mine/.gbinet-tmp-0123abcd-x"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("half")
    run(scene, Oracle(scene), out, CONFIG)  # type: ignore[arg-type]
    assert [p.relative_to(out).as_posix() for p in out.rglob(".*")] == ["mine/.gbinet-tmp-0123abcd-x"]


def test_a_second_run_at_the_same_time_is_refused(ball_scene: SceneMaker, tmp_path: Path) -> None:
    """With other settings and overwrite, the two would have mixed their maps."""
    scene = ball_scene()
    oracle = Oracle(scene)
    refused: list[str] = []

    def second() -> None:
        try:
            run(scene, oracle, tmp_path / "out", ReconstructConfig(), overwrite=True)  # type: ignore[arg-type]
        except GBiNetError as error:
            refused.append(str(error))

    def at(stage: str, done: int, total: int, what: str) -> None:
        if (stage, done) in (("depth", 2), ("fusion", 1)):
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    result = run(scene, oracle, tmp_path / "out", CONFIG, progress=at)  # type: ignore[arg-type]
    assert len(refused) == 2 and all("is writing here" in text for text in refused)
    run(scene, oracle, tmp_path / "clean", CONFIG)  # type: ignore[arg-type]
    assert result.cloud.read_bytes() == (tmp_path / "clean" / "cloud.ply").read_bytes()
