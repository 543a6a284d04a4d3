"""`gbinet evaluate ...` from the command line: files in, JSON, Markdown, plots and coloured clouds out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gbinet.cli.main import main
from gbinet.evaluation.scores import markdown_table, provenance
from gbinet.formats.atomic import json_ready
from gbinet.formats.depth_files import write_depth
from gbinet.formats.ply import read_ply, write_ply
from gbinet.formats.tanks import write_log
from gbinet.pointcloud import PointCloud


def save(path: Path, points: np.ndarray) -> Path:
    return write_ply(path, PointCloud(torch.from_numpy(points)))


def scores(folder: Path) -> dict:
    return json.loads((folder / "scores.json").read_text())


def plane(z: float) -> np.ndarray:
    x, y = np.meshgrid(np.arange(30.0), np.arange(20.0))
    return np.stack([x.ravel(), y.ravel(), np.full(x.size, z)], axis=1)


# ---- clouds -----------------------------------------------------------------------------------------------


def test_cloud(tmp_path, capsys):
    prediction, truth = save(tmp_path / "run" / "cloud.ply", plane(0.3)), save(tmp_path / "t.ply", plane(0))
    record = {"weights": "gbinet-dtu", "commit": "abc123", "settings": {"stages": 8}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    assert main(["evaluate", "cloud", str(prediction), str(truth), "--thresholds", "0.2", "0.5"]) == 0
    out = tmp_path / "run" / "evaluation"
    content = scores(out)
    assert content["score"]["accuracy"] == pytest.approx(0.3)
    assert content["score"]["fscore"] == {"0.2": 0.0, "0.5": 1.0}
    assert content["prediction"]["run"] == record  # a score says what made it
    text = (out / "scores.md").read_text()
    assert "abc123" in text and "0.3000" in text and "histogram.png" in text
    coloured = read_ply(out / "accuracy.ply")
    assert coloured.rgb is not None and len(coloured) == 600
    assert (out / "histogram.png").stat().st_size > 1000 and (out / "fscore.png").exists()
    assert "0.3000" in capsys.readouterr().out


def test_eth3d(tmp_path):
    wall = np.column_stack([np.full(500, 3.0), np.random.default_rng(0).uniform(-0.1, 0.1, (500, 2))])
    save(tmp_path / "scan.ply", wall)
    matrix = " ".join(str(v) for v in np.eye(4).ravel())
    (tmp_path / "scans.mlp").write_text(
        f'<MeshLabProject><MeshGroup><MLMesh filename="scan.ply"><MLMatrix44>{matrix}</MLMatrix44></MLMesh>'
        "</MeshGroup></MeshLabProject>"
    )
    prediction = save(tmp_path / "run" / "cloud.ply", wall)
    assert main(["evaluate", "eth3d", str(prediction), str(tmp_path / "scans.mlp")]) == 0
    row = scores(tmp_path / "run" / "evaluation")["rows"][0]
    assert row == {"tolerance [m]": 0.01, "accuracy [%]": 100, "completeness [%]": 100, "F1 [%]": 100}


# ---- DTU --------------------------------------------------------------------------------------------------


def write_dtu(folder: Path, scans: dict[int, float]) -> None:
    io = pytest.importorskip("scipy.io")
    (folder / "ObsMask").mkdir(parents=True)
    box = {"ObsMask": np.ones((5, 5, 5)), "BB": np.array([[0.0, 0, -10], [40, 40, 30]]), "Res": 10.0}
    for scan in scans:
        io.savemat(folder / "ObsMask" / f"ObsMask{scan}_10.mat", box)
        io.savemat(folder / "ObsMask" / f"Plane{scan}.mat", {"P": np.array([[0.0, 0, 1, 5]])})
        save(folder / "Points" / "stl" / f"stl{scan:03}_total.ply", plane(0))


def test_dtu_scans_and_their_mean(tmp_path, capsys):
    offsets = {1: 0.25, 4: 0.75}
    write_dtu(tmp_path / "dtu", offsets)
    for scan, offset in offsets.items():
        save(tmp_path / "out" / f"scan{scan}.ply", plane(offset))
    command = ["evaluate", "dtu", str(tmp_path / "out"), str(tmp_path / "dtu"), "--scans", "1", "4"]
    assert main(command) == 0
    out = tmp_path / "out" / "evaluation"
    rows = scores(out)["rows"]
    assert [row["scan"] for row in rows] == ["scan1", "scan4", "mean"]
    assert [row["overall"] for row in rows] == pytest.approx([0.25, 0.75, 0.5])
    assert "not the 22" in (out / "scores.md").read_text()
    assert (out / "scans" / "scan4-completeness.ply").exists()
    # Again: finished scans are kept, a changed cloud is scored anew.
    assert "scan 1: accuracy" in capsys.readouterr().out
    save(tmp_path / "out" / "scan4.ply", plane(0.5))
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "scan 1: accuracy" not in printed and "scan 4: accuracy 0.5000" in printed
    assert scores(out)["rows"][-1]["overall"] == pytest.approx(0.375)
    # So is what is compared with another truth, and what lacks its coloured clouds.
    save(tmp_path / "dtu" / "Points" / "stl" / "stl001_total.ply", plane(0.05))
    (out / "scans" / "scan4-accuracy.ply").unlink()
    assert main(command) == 0
    assert capsys.readouterr().out.count(": accuracy 0.") == 2 and (out / "scans/scan4-accuracy.ply").exists()
    assert scores(out)["rows"][0]["overall"] == pytest.approx(0.2)
    # And what was last scored without them: those that are there are of another cloud.
    before = (out / "scans" / "scan4-accuracy.ply").read_bytes()
    save(tmp_path / "out" / "scan4.ply", plane(0.1))
    assert main([*command, "--no-clouds-with-errors"]) == 0
    assert (out / "scans" / "scan4-accuracy.ply").read_bytes() == before
    assert main(command) == 0
    assert (out / "scans" / "scan4-accuracy.ply").read_bytes() != before


def test_dtu_wants_all_22_scans(tmp_path, capsys):
    write_dtu(tmp_path / "dtu", {1: 0.0})
    save(tmp_path / "out" / "scan1.ply", plane(0.0))
    assert main(["evaluate", "dtu", str(tmp_path / "out"), str(tmp_path / "dtu")]) == 2
    assert "no cloud of scan 4" in capsys.readouterr().err


# ---- Tanks and Temples ------------------------------------------------------------------------------------


def test_tanks(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (2, 20_000))
    scan = np.stack([x, y, 0.3 * np.sin(3 * x) * np.cos(2 * y)], axis=1)
    poses = np.tile(np.eye(4), (12, 1, 1))
    poses[:, :3, 3] = rng.uniform(-2, 2, (12, 3))
    corners = [[-2, -2, 0], [2, -2, 0], [2, 2, 0], [-2, 2, 0]]
    volume = {"orthogonal_axis": "Z", "axis_min": -2, "axis_max": 2, "bounding_polygon": corners}
    for name in ("Barn", "Church"):
        folder = tmp_path / "truth" / name
        save(folder / f"{name}.ply", scan)
        (folder / f"{name}.json").write_text(json.dumps(volume))
        write_log(folder / f"{name}_COLMAP_SfM.log", poses)
        np.savetxt(folder / f"{name}_trans.txt", np.eye(4))
        save(tmp_path / "out" / name / "cloud.ply", scan[:15_000])
        write_log(tmp_path / "out" / f"{name}.log", poses)
    paths = [str(tmp_path / "out"), str(tmp_path / "out"), str(tmp_path / "truth")]
    assert main(["evaluate", "tanks", *paths]) == 0
    content = scores(tmp_path / "out" / "evaluation")
    assert [row["scene"] for row in content["rows"]] == ["Barn", "Church", "mean"]
    assert content["rows"][0]["precision [%]"] > 99.9
    assert content["settings"]["tau"] == {"Barn": 0.01, "Church": 0.025}
    assert (tmp_path / "out" / "evaluation" / "Barn-recall.ply").exists()


def test_tanks_upload(tmp_path, capsys):
    for name in ("Auditorium", "Ballroom", "Courtroom", "Museum", "Palace"):
        save(tmp_path / "in" / f"{name}.ply", plane(0))
        write_log(tmp_path / "in" / f"{name}.log", np.eye(4)[None])
    command = ["evaluate", "tanks-upload", str(tmp_path / "in"), str(tmp_path / "in"), str(tmp_path / "up")]
    assert main([*command, "--group", "advanced"]) == 2
    assert "Temple.ply" in capsys.readouterr().err
    save(tmp_path / "in" / "Temple" / "cloud.ply", plane(0))
    write_log(tmp_path / "in" / "Temple" / "Temple.log", np.eye(4)[None])
    assert main([*command, "--group", "advanced"]) == 0
    assert len(list((tmp_path / "up").iterdir())) == 13


# ---- depth ------------------------------------------------------------------------------------------------


def test_depth_of_two_scenes(tmp_path):
    """Half of the pixels are exact, a quarter is 0.4 off, a quarter has no answer."""
    truth = np.full((8, 12), 10.0, np.float32)
    truth[0] = 0  # unknown
    depth = truth.copy()
    depth[:, 6:9] += 0.4
    depth[:, 9:] = 0
    confidence = np.where(np.arange(12) < 6, 0.95, 0.3)[None].repeat(8, 0).astype(np.float32)
    for scene, shift in (("a", 0.0), ("b", 2.0)):
        for view in ("000", "001"):
            given = np.where(depth > 0, depth + shift, 0)
            write_depth(tmp_path / "out" / scene / "depth" / f"{view}.npz", given, confidence)
            write_depth(tmp_path / "truth" / scene / f"{view}.pfm", truth)
    command = ["evaluate", "depth", str(tmp_path / "out"), str(tmp_path / "truth")]
    for _ in range(2):  # the second time, the results of the first are not taken for a scene
        assert main([*command, "--thresholds", "0.125", "0.5", "4"]) == 0
    out = tmp_path / "out" / "evaluation"
    content = scores(out)
    rows = {row["scene"]: row for row in content["rows"]}
    assert rows["a"]["% <= 0.125 mm"] == pytest.approx(50)
    assert rows["a"]["% <= 0.5 mm"] == pytest.approx(75)
    assert rows["a"]["% answered"] == rows["b"]["% <= 4 mm"] == pytest.approx(75)
    assert rows["a"]["pixels"] == 2 * 7 * 12
    assert rows["a"]["mean [mm]"] == pytest.approx(0.4 / 3, rel=1e-5)
    assert rows["b"]["median [mm]"] == pytest.approx(2.0, rel=3e-3)
    assert rows["mean"]["% <= 0.125 mm"] == pytest.approx(25)
    sure = next(r for r in content["By confidence"] if r["scene"] == "a" and r["confidence above"] == 0.9)
    assert sure["% of pixels"] == pytest.approx(50) and sure["% <= 0.125 mm"] == pytest.approx(100)
    assert (out / "errors" / "b" / "001.png").exists() and (out / "a-histogram.png").exists()
    assert content["scenes"]["a"]["views"]["000"]["pixels"] == 84


def test_depth_of_another_size(tmp_path):
    truth = np.random.default_rng(0).uniform(1, 2, (6, 8)).astype(np.float32)
    write_depth(tmp_path / "truth" / "v.npy", truth.repeat(3, 0).repeat(3, 1))
    write_depth(tmp_path / "out" / "v.npz", truth)
    command = ["evaluate", "depth", str(tmp_path / "out"), str(tmp_path / "truth")]
    assert main(command) == 0
    assert scores(tmp_path / "out" / "evaluation")["rows"][0]["% <= 0.125 mm"] == 100
    write_depth(tmp_path / "truth" / "v.npy", np.ones((18, 30), np.float32))
    assert main(command) == 2


# ---- hostile input ----------------------------------------------------------------------------------------


def bad_clouds() -> list[tuple[np.ndarray, str]]:
    hole = plane(0)
    hole[3, 1] = np.nan
    return [(np.zeros((0, 3)), "no points"), (hole, "NaN"), (np.full((5, 3), np.inf), "5 of 5 points")]


@pytest.mark.parametrize(("points", "message"), bad_clouds())
def test_bad_clouds_end_in_a_sentence(tmp_path, capsys, points, message):
    bad, good = save(tmp_path / "bad.ply", points), save(tmp_path / "good.ply", plane(0))
    for pair in ((bad, good), (good, bad)):
        assert main(["evaluate", "cloud", *map(str, pair)]) == 2
        error = capsys.readouterr().err
        assert message in error and "bad.ply" in error and error.count("\n") == 1


def test_missing_things_end_in_a_sentence(tmp_path, capsys):
    good, nowhere = str(save(tmp_path / "good.ply", plane(0))), str(tmp_path / "nowhere")
    for command in (
        ["cloud", nowhere, good],
        ["cloud", good, nowhere],
        ["eth3d", good, nowhere],
        ["dtu", nowhere, nowhere],
        ["tanks", good, nowhere, nowhere],
        ["tanks", nowhere, nowhere, nowhere],
        ["tanks-upload", nowhere, nowhere, nowhere],
        ["depth", nowhere, nowhere],
        ["depth", str(tmp_path), nowhere],
        ["cloud", good, good, "--device", "abacus"],
    ):
        assert main(["evaluate", *command]) == 2, command
        assert capsys.readouterr().err.startswith("gbinet evaluate: "), command


# ---- the report itself ------------------------------------------------------------------------------------


def test_json_is_always_valid():
    content = json_ready(
        {"a": float("nan"), 0.5: np.float32(2), "p": Path("x"), "t": (np.arange(2), float("inf"))}
    )
    assert content == {"a": None, "0.5": 2.0, "p": "x", "t": [[0, 1], None]}


def test_table_is_markdown():
    lines = markdown_table(["name", "x"], [["a|b", 0.25], ["mean", float("nan")]]).splitlines()
    assert lines == ["| name |      x |", "| ---- | -----: |", "| a\\|b | 0.2500 |", "| mean |      - |"]
    assert markdown_table(["%"], [[12.3456]]).splitlines()[-1] == "| 12.35 |"


def test_records_that_are_broken_do_not_stop_a_score(tmp_path):
    (tmp_path / "run.json").write_text("{")
    assert provenance(tmp_path)["run"] == "run.json is not readable"


@pytest.mark.parametrize("bad", ["nan", "inf", "0", "-1"])
def test_thresholds_are_numbers(tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_depth(tmp_path / "out" / "v.npz", np.ones((4, 4)))
    write_depth(tmp_path / "truth" / "v.npy", np.ones((4, 4)))
    folders = [str(tmp_path / "out"), str(tmp_path / "truth")]
    assert main(["evaluate", "depth", *folders, "--thresholds", "1", bad]) == 2
    assert "thresholds must be positive and finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--thresholds"], ["--thresholds", "nan"], ["--thresholds", "1", "inf"], ["--max-distance", "nan"]],
)
def test_distances_of_clouds_are_numbers(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_ply(tmp_path / "a.ply", PointCloud(torch.rand(9, 3)))
    assert main(["evaluate", "cloud", str(tmp_path / "a.ply"), str(tmp_path / "a.ply"), *flags]) == 2
    assert f"{flags[0]} must be positive and finite" in capsys.readouterr().err
