from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from ball_scene import RADIUS, SceneMaker, true_depth
from oracle import Oracle
from PIL import Image

import gbinet.pipeline.reconstruct as pipeline
from gbinet.cli.main import main
from gbinet.errors import GBiNetError, InputError, SceneError
from gbinet.formats.depth_files import read_depth_camera, write_depth
from gbinet.formats.ply import PlyWriter
from gbinet.georeference.place import Georeference
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.config import preset as network
from gbinet.pipeline.preparing import prepare, with_georeference
from gbinet.pipeline.reconstruct import PRESETS, ReconstructConfig, reconstruct, run
from gbinet.pipeline.record import duration
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene, View
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.load import load_scene
from gbinet.scenes.refine.outcome import Refinement
from gbinet.viewer.report import Report

CONFIG = ReconstructConfig(depth=DepthConfig(views=3))


def test_photos_become_a_cloud_with_report_and_record(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    stages: set[str] = set()
    result = run(
        scene,
        Oracle(scene),  # type: ignore[arg-type]
        tmp_path / "out",
        CONFIG,
        progress=lambda stage, *_: stages.add(stage),
        judge=lambda cloud: [("judged", str(cloud.name))],
    )
    assert stages == {"depth", "fusion"}
    cloud = PointCloud.load(result.cloud)
    assert len(cloud) == result.points > 500
    off = torch.minimum((cloud.xyz.norm(dim=-1) - RADIUS).abs(), (cloud.xyz[:, 1] - RADIUS).abs())
    assert off.quantile(0.95) < 0.01
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["points"] == result.points and record["settings"]["depth"]["views"] == 3
    assert record["seconds"]["total"] > 0 and record["versions"]["torch"] == torch.__version__
    text = result.report.read_text()
    assert f"{result.points:,} points" in text and "judged" in text
    assert all(f"<h3>{view.name}</h3>" in text for view in scene.views)
    assert " confident (at least 0.1, 0.6 where blank) · " in text
    assert "cached_maps" not in text and ">None<" not in text  # what says nothing to a reader


def test_the_report_says_that_photos_alone_have_no_unit() -> None:
    page = Report("title", "subtitle", ())
    assert "no unit" in with_georeference(page, None, bare=True).subtitle
    assert with_georeference(page, None, bare=False) == page
    known = Georeference("--scale", None, (0, 0, 0), np.eye(4).tolist())
    assert "no unit" not in with_georeference(page, known, bare=True).subtitle


def test_info_counts_the_depth_maps_of_a_run(
    ball_scene: SceneMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = ball_scene()
    run(scene, Oracle(scene), tmp_path, CONFIG)  # type: ignore[arg-type]
    capsys.readouterr()
    assert main(["info", str(tmp_path)]) == 0
    assert "depth 5 of 5 views, by gbinet" in " ".join(capsys.readouterr().out.split())


def test_a_result_means_the_depth_of_its_run_and_a_scene_its_true_depth(
    ball_scene: SceneMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = ball_scene()
    truth = [
        write_depth(scene.root / f"true-{view.name}.pfm", true_depth(view.camera)) for view in scene.views
    ]
    views = tuple(replace(view, depth_path=path) for view, path in zip(scene.views, truth, strict=True))
    scene, result = replace(scene, views=views), scene.root.parent
    run(scene, Oracle(scene), result, CONFIG)  # type: ignore[arg-type]
    capsys.readouterr()
    assert main(["info", str(result)]) == 0
    assert "5 of 5 views, by gbinet" in " ".join(capsys.readouterr().out.split())
    maps = DepthFolder(load_scene(result))
    assert maps.folder == result / "depth" and not maps.has_unused_predictions
    estimate_depths(scene, Oracle(scene), scene.root / "depth", CONFIG.depth)  # type: ignore[arg-type]
    maps = DepthFolder(scene)
    assert maps.find(0) == (truth[0], 1.0) and maps.has_unused_predictions


def test_a_second_run_keeps_the_depth_and_gives_the_same_cloud(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    first = run(scene, oracle, tmp_path, CONFIG)  # type: ignore[arg-type]
    before, searches = first.cloud.read_bytes(), oracle.searches
    second = run(scene, oracle, tmp_path, CONFIG)  # type: ignore[arg-type]
    assert oracle.searches == searches and len(second.depth.kept) == 5
    assert second.cloud.read_bytes() == before
    with pytest.raises(GBiNetError, match="other settings"):
        run(scene, oracle, tmp_path, replace(CONFIG, depth=DepthConfig(views=4)))  # type: ignore[arg-type]


def test_refined_cameras_are_those_of_the_result(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ball_scene()
    better = replace(given, views=tuple(_aside(view) for view in given.views))
    told = Refinement(5, tuple(v.name for v in given.views), 1.314, 0.281, 0.012, 0.3, 9, 500)
    monkeypatch.setattr("gbinet.pipeline.preparing.refine_cameras", lambda *_: (better, told))
    oracle = Oracle(better)
    result = run(given, oracle, tmp_path, replace(CONFIG, refine_cameras=True))  # type: ignore[arg-type]
    assert result.refined == told and "1.31 -> 0.28 px" in told.summary()
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["refined_cameras"]["after"] == 0.281 and record["settings"]["refine_cameras"]
    page = result.report.read_text()
    assert "cameras refined" in page and "5 of 5" in page and "1.31 -&gt; 0.28 px" in page
    pose = better.views[1].camera.cam_from_world
    assert torch.allclose(load_scene(tmp_path).views[1].camera.cam_from_world.to(pose), pose)
    stored = read_depth_camera(tmp_path / "depth" / f"{given.views[1].name}.npz")
    assert stored is not None and torch.allclose(stored.cam_from_world.to(pose), pose, atol=1e-6)
    again = run(given, Oracle(given), tmp_path, CONFIG)  # type: ignore[arg-type]
    assert again.refined is None and len(again.depth.computed) == 5  # maps of other cameras are not reused


@pytest.mark.parametrize(
    ("kind", "asked", "most", "expected"),
    [
        ("rgbd", None, 5, True),  # tracked by a device
        ("rgbd", None, 4, False),  # too many views to do it unasked
        ("rgbd", True, 4, True),
        ("rgbd", False, 5, False),
        ("colmap", None, 5, False),
        ("colmap", True, 5, True),
    ],
)
def test_tracked_cameras_are_refined_unasked(
    kind: str, asked: bool | None, most: int, expected: bool,
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    told = Refinement(5, kept_because="they fit")
    monkeypatch.setattr("gbinet.pipeline.preparing.refine_cameras", lambda scene, *_: (scene, told))
    monkeypatch.setattr("gbinet.pipeline.preparing._MAX_REFINED", most)
    scene = replace(ball_scene(), kind=kind)
    ready = prepare(scene, tmp_path, replace(CONFIG, refine_cameras=asked), None)
    assert (ready.refined is told) == expected


def test_a_note_says_that_given_cameras_seem_to_be_off(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depth that is right for one set of cameras, fused with another one."""
    right = ball_scene(views=2, width=256, height=192)
    wrong, worse = (
        replace(right, views=tuple(_aside(v, by * (-1) ** i, axis=2) for i, v in enumerate(right.views)))
        for by in (0.02, 0.5)
    )
    assert not any("cameras seem" in text for text in _notes(right, right, tmp_path / "right"))
    for name, thought, why in (("wrong", wrong, "miss each other by"), ("worse", worse, "in only")):
        (said,) = (text for text in _notes(right, thought, tmp_path / name) if "cameras" in text)
        assert why in said and "--refine-cameras" in said and "--check-cameras" in said
    cells = _notes(right, wrong, tmp_path / "cells", readout="centre")  # these miss by their width
    assert not any("cameras seem" in text for text in cells)
    cells = _notes(right, worse, tmp_path / "holes", readout="centre")
    assert any("cameras may be off" in text for text in cells)
    early = replace(CONFIG, depth=replace(CONFIG.depth, stages=4))  # where no refiner corrects them
    assert not any("cameras seem" in text for text in _notes(right, wrong, tmp_path / "early", early))
    told = Refinement(2, kept_because="they fit")
    monkeypatch.setattr("gbinet.pipeline.preparing.refine_cameras", lambda scene, *_: (scene, told))
    refined = replace(CONFIG, refine_cameras=True)  # then it was looked at already
    assert not any("cameras seem" in text for text in _notes(right, wrong, tmp_path / "refined", refined))


def _notes(
    right: Scene,
    thought: Scene,
    out: Path,
    config: ReconstructConfig = CONFIG,
    readout: Literal["centre", "refined"] = "refined",
) -> tuple[str, ...]:
    oracle = Oracle(right)
    oracle.config = replace(network("bundled"), readout=readout)
    return run(thought, oracle, out, config).warnings  # type: ignore[arg-type]


def _aside(view: View, by: float = 0.004, axis: int | slice = slice(3)) -> View:
    pose = view.camera.cam_from_world.clone()
    pose[axis, 3] += by
    return replace(view, camera=replace(view.camera, cam_from_world=pose))


def test_a_changed_mask_changes_the_cloud_and_no_depth_map(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    oracle, mask = Oracle(scene), tmp_path / "mask.bmp"
    scene = replace(scene, views=tuple(replace(view, mask_path=mask) for view in scene.views))
    Image.new("L", (64, 48), 255).save(mask)
    first = run(scene, oracle, tmp_path / "out", CONFIG)  # type: ignore[arg-type]
    Image.fromarray(np.arange(64, dtype=np.uint8)[None].repeat(48, 0) // 32 * 255).save(
        mask
    )  # the right half
    second = run(scene, oracle, tmp_path / "out", CONFIG)  # type: ignore[arg-type]
    assert len(second.depth.kept) == 5 and 0 < second.points < 0.8 * first.points


def test_from_python_without_a_folder(ball_scene: SceneMaker) -> None:
    scene = ball_scene()
    cloud = reconstruct(scene, Oracle(scene), config=CONFIG)  # type: ignore[arg-type]
    assert len(cloud) > 500 and cloud.normals is not None


def test_what_went_wrong_is_in_report_and_record(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    scene.views[2].image_path.write_bytes(b"no picture")
    result = run(scene, oracle, tmp_path / "out", CONFIG)  # type: ignore[arg-type]
    assert any("view 002 was left out" in w for w in result.warnings)
    assert "view 002 was left out" in result.report.read_text()
    assert any("002" in w for w in json.loads((tmp_path / "out" / "run.json").read_text())["warnings"])


@pytest.mark.parametrize("kind", ["colmap", "openmvs", "nerfstudio"])
def test_exports_are_written_for_other_programs(ball_scene: SceneMaker, tmp_path: Path, kind: str) -> None:
    scene = ball_scene()
    config = replace(CONFIG, export=(kind,))  # type: ignore[arg-type]
    result = run(scene, Oracle(scene), tmp_path / "out", config)  # type: ignore[arg-type]
    (folder,) = result.extras
    assert folder == tmp_path / "out" / "export" / kind
    files = {"colmap": "stereo/depth_maps/*.bin", "openmvs": "*.dmap", "nerfstudio": "transforms.json"}
    assert list(folder.rglob(files[kind]))


def test_an_export_that_fails_does_not_cost_the_report(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "export").write_text("in the way")
    config = replace(CONFIG, export=("nerfstudio", "xyz"))
    result = run(scene, Oracle(scene), tmp_path / "out", config)  # type: ignore[arg-type]
    assert any(w.startswith("--export nerfstudio failed: cannot write") for w in result.warnings)
    assert "--export nerfstudio failed" in result.report.read_text()
    assert [path.name for path in result.extras] == ["cloud.xyz"]


def test_a_mesh_without_open3d_is_a_sentence_before_any_work(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "open3d", None)
    scene = ball_scene()
    with pytest.raises(GBiNetError, match=r"gbinet\[mesh\]"):
        run(scene, Oracle(scene), tmp_path / "out", replace(CONFIG, mesh="tsdf"))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_names_of_folders_and_presets_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="no such folder"):
        run(tmp_path / "nowhere", None, tmp_path / "out")
    with pytest.raises(InputError, match="fast, balanced, best"):
        pipeline.preset("perfect")
    sizes = [PRESETS[name].depth.max_size for name in ("fast", "balanced", "best")]
    assert sizes == sorted(sizes)


def test_durations_read_well() -> None:
    assert [duration(s) for s in (0.44, 59.94, 61, 3599, 7300)] == [
        "0.4 s", "59.9 s", "1 min 1 s", "59 min 59 s", "2 h 1 min",
    ]  # fmt: skip


# ---- fusion beside depth ----


def _beside(monkeypatch: pytest.MonkeyPatch, room: int = 1 << 30) -> None:
    """As with a GPU: what is computed stays in memory, and fusion follows at once."""
    monkeypatch.setattr(pipeline, "_room", lambda _: room)


@pytest.mark.parametrize("room", [1 << 30, 100_000])  # for all maps and photos; for some of them
def test_a_cloud_that_is_fused_beside_depth_is_the_same(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    scene = ball_scene(views=7)
    model = Oracle(scene)
    (tmp_path / "photos" / "001.png").write_bytes(b"broken")  # a view that is left out settles too
    after = run(scene, model, tmp_path / "after", CONFIG)  # type: ignore[arg-type]
    _beside(monkeypatch, room)
    beside = run(scene, model, tmp_path / "beside", CONFIG)  # type: ignore[arg-type]
    assert beside.points > 0 and list(beside.depth.failed) == list(after.depth.failed)
    assert beside.cloud.read_bytes() == after.cloud.read_bytes()
    (tmp_path / "beside" / "depth" / f"{scene.views[3].name}.npz").unlink()  # all others are kept
    again = run(scene, model, tmp_path / "beside", CONFIG)  # type: ignore[arg-type]
    assert len(again.depth.computed) == 1 and again.cloud.read_bytes() == after.cloud.read_bytes()


@pytest.mark.gpu
def test_on_a_gpu_a_cloud_that_is_fused_beside_depth_is_the_same(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With streams, graphs and threads."""
    scene, settings = ball_scene(views=12, width=320, height=256), DepthConfig(views=3, device="cuda")
    config = ReconstructConfig(depth=settings)
    beside = run(scene, None, tmp_path / "beside", config)
    again = run(scene, None, tmp_path / "again", config)
    _beside(monkeypatch, room=0)
    after = run(scene, None, tmp_path / "after", config)
    assert after.points > 0 and beside.cloud.read_bytes() == after.cloud.read_bytes()
    assert again.cloud.read_bytes() == after.cloud.read_bytes()


def test_who_fails_beside_the_other_is_heard(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _beside(monkeypatch)
    scene = ball_scene(views=7)
    model = Oracle(scene)

    def interrupt(step: str, done: int, *_: object) -> None:
        if (step, done) == ("depth", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(scene, model, tmp_path / "out", CONFIG, progress=interrupt)  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "cloud.ply").exists()

    def full(*_: object) -> None:
        raise GBiNetError("the disk is full")

    monkeypatch.setattr("gbinet.formats.ply.PlyWriter.append", full)
    with pytest.raises(GBiNetError, match="the disk is full"):
        run(scene, model, tmp_path / "out", CONFIG)  # type: ignore[arg-type]


def test_fusion_that_ran_out_of_memory_beside_depth_starts_again(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene(views=7)
    model = Oracle(scene)
    after = run(scene, model, tmp_path / "after", CONFIG)  # type: ignore[arg-type]
    _beside(monkeypatch)
    usual, calls = PlyWriter.append, 0

    def sometimes(self: PlyWriter, cloud: PointCloud) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        usual(self, cloud)

    monkeypatch.setattr(PlyWriter, "append", sometimes)
    beside = run(scene, model, tmp_path / "beside", CONFIG)  # type: ignore[arg-type]
    assert calls > 2 and beside.cloud.read_bytes() == after.cloud.read_bytes()
    assert len(beside.depth.computed) == 7
