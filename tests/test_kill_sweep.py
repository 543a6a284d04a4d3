"""Killed at any moment and started again, a run ends with the same bytes, and leaves nothing else behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ball_scene import SceneMaker
from shifted_photos import shifted_photos

from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.pointcloud import PointCloud
from gbinet.scenes.kinds import write_scene

SCRIPT = Path(__file__).with_name("killed_run.py")
# Times of a run are in these; a database lays out its pages as it is written.
TELLS_TIME = {"run.json", "report.html", "sfm.json", "database.db"}


def sweep(scene: Path, folder: Path, count: int, *options: str) -> dict[str, str]:
    """Kill and start again at `count` moments; number of the moment (and folder) -> what happened then."""
    torch.manual_seed(0)
    weights = GBiNet(GBiNetConfig(stages=2)).eval().save(folder / "random.safetensors")
    command = [
        "reconstruct", str(scene), "--weights", str(weights), "--max-size", "64", "--views", "2",
        "--min-confidence", "0", "--min-views", "1", "--max-reprojection", "50",
        "--max-relative-depth", "0.9", *options,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    subprocess.run(
        [sys.executable, str(SCRIPT), str(folder / "moments.json"), str(count), str(folder), "--", *command],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    killed: dict[str, str] = json.loads((folder / "moments.json").read_text())
    return killed


def compared(scene: Path, folder: Path, count: int, *options: str) -> dict[str, str]:
    """The same, and all results have the bytes of a whole run."""
    killed = sweep(scene, folder, count, *options)
    whole = contents(folder / "whole")
    assert len(PointCloud.load(folder / "whole" / "cloud.ply")) > 0
    for number, moment in killed.items():
        assert contents(folder / number) == whole, f"killed {moment}"
    return killed


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder, hidden ones too; only the names of TELLS_TIME."""
    return {
        path.relative_to(folder).as_posix(): None if path.name in TELLS_TIME else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "fingerprints.json"  # no result: what need not be read again
    }


def test_killed_now_and_then(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = write_scene(ball_scene(views=3), tmp_path / "scene", "mvsnet")
    assert len(compared(scene, tmp_path, 3)) == 3


@pytest.mark.slow
def test_killed_at_twenty_moments(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = write_scene(ball_scene(views=4), tmp_path / "scene", "mvsnet")
    killed = compared(scene, tmp_path, 20, "--export", "colmap")
    assert len(killed) == 20
    for name in ("settings.json", "run.json", "report.html", "cloud.ply", ".npz", ".bin"):
        assert any(moment.endswith(name) for moment in killed.values()), f"never killed around {name}"


@pytest.mark.slow
def test_killed_while_poses_are_found(tmp_path: Path) -> None:
    """Structure from motion goes on, too, and comes to the same poses."""
    pytest.importorskip("pycolmap")
    shifted_photos(tmp_path / "photos", 4, 20)
    killed = compared(tmp_path / "photos", tmp_path, 6)
    assert any("sfm.json" in moment for moment in killed.values())
