"""--json: one object on stdout, all else on stderr."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from ball_scene import SceneMaker
from oracle import Oracle

from gbinet.cli import reconstruct as verb
from gbinet.cli import validate as validating
from gbinet.cli.main import main
from gbinet.cli.progress import StepBars, progress_bar
from gbinet.cli.say import tell
from gbinet.formats.ply import write_ply
from gbinet.model.gbinet import GBiNet
from gbinet.pointcloud import PointCloud
from gbinet.scenes.load import load_scene
from gbinet.scenes.result import write_result


@pytest.fixture
def folder(ball_scene: SceneMaker) -> Path:
    scene = ball_scene()
    write_result(scene, scene.root)
    return scene.root


def told(capsys, *arguments: object) -> dict:
    assert main([*(str(a) for a in arguments), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err  # what people read went there
    return json.loads(output.out)


def test_info(folder: Path, capsys) -> None:
    content = told(capsys, "info", folder)
    assert content["kind"] == "gbinet" and len(content["views"]) == 5
    camera = load_scene(folder).views[2].camera
    assert content["views"][2]["cam_from_world"] == camera.cam_from_world.tolist()
    assert main(["info", str(folder)]) == 0  # the next one is for people again
    with pytest.raises(json.JSONDecodeError):
        json.loads(capsys.readouterr().out)


def test_info_of_bare_photos(ball_scene: SceneMaker, capsys) -> None:
    content = told(capsys, "info", ball_scene().root)
    assert content["kind"] == "photos" and len(content["photos"]) == 5


def test_reconstruct(folder: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = Oracle(load_scene(folder))
    monkeypatch.setattr(GBiNet, "from_pretrained", lambda *_: oracle)
    assert verb.run.__doc__
    content = told(capsys, "reconstruct", folder, "-o", tmp_path / "out", "-q", "fast", "--max-size", 64)
    assert content["points"] > 100 and Path(content["cloud"]).is_file() and Path(content["report"]).is_file()
    assert {"settings", "made_by", "seconds", "warnings", "georeference"} <= content.keys()


def test_validate(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """--json prints what --out writes; a figure that is not a number is null in both."""
    figures = {"score": 0.5, "edge": math.nan}
    monkeypatch.setattr(validating, "validation_batches", lambda *_: [])  # nothing is rendered
    monkeypatch.setattr(validating, "validate", lambda *_: SimpleNamespace(to_dict=lambda: figures))
    monkeypatch.setattr(validating, "table", lambda *_: "a table\nof two lines")
    content = told(capsys, "validate", "--out", tmp_path / "figures.json")
    assert content == json.loads((tmp_path / "figures.json").read_text()) == {"score": 0.5, "edge": None}
    assert main(["validate"]) == 0
    assert capsys.readouterr().out == "a table\nof two lines\n"


def test_evaluate(tmp_path: Path, capsys, folder: Path) -> None:
    import torch

    points = torch.rand(500, 3)
    write_ply(tmp_path / "a.ply", PointCloud(points))
    write_ply(tmp_path / "b.ply", PointCloud(points + 0.01))
    content = told(capsys, "evaluate", "cloud", tmp_path / "a.ply", tmp_path / "b.ply")
    assert "accuracy" in json.dumps(content)


def test_other_verbs_do_not_take_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["convert", str(folder), str(tmp_path / "x"), "--to", "colmap", "--json"])


def test_an_error_leaves_stdout_empty(tmp_path: Path, capsys) -> None:
    assert main(["info", str(tmp_path / "nothing"), "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "no such folder" in output.err


def test_without_a_terminal_a_line_tells_how_far_it_is(capsys) -> None:
    with StepBars(every=0) as bars:
        bars("depth", 3, 18, "a photo")
    assert capsys.readouterr().err == "depth maps: 3 of 18, a photo\n"
    with StepBars(every=1e9) as bars:
        bars("depth", 3, 18, "a photo")
    with progress_bar("x") as progress:
        progress(1, 2, "y")
    assert capsys.readouterr().err == ""


def test_what_json_does_not_know_is_null_or_text(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("gbinet.cli.say._for_programs", True)
    tell({"share": math.nan, "most": [math.inf, 1.0], "out": Path("a")})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "share": None,
        "most": [None, 1.0],
        "out": "a",
    }
