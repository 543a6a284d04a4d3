from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker, true_depth

from gbinet.cli.main import main
from gbinet.cli.progress import StepBars
from gbinet.formats.depth_files import write_depth
from gbinet.formats.lock import locked
from gbinet.formats.pfm import write_pfm
from gbinet.model.gbinet import GBiNet
from gbinet.pointcloud import PointCloud
from gbinet.scenes.kinds import write_scene


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    return str(GBiNet().eval().save(tmp_path_factory.mktemp("weights") / "random.safetensors"))


def written(ball_scene: SceneMaker, folder: Path, **options: int) -> Path:
    """The ball scene as an MVSNet folder."""
    return write_scene(ball_scene(**options), folder, "mvsnet")


def test_help_of_every_verb_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, option in {"reconstruct": "--quality", "depth": "--stages", "fuse": "--min-views",
                         "demo": "--seed", "view": "--port"}.items():  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0 and option in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["reconstruct", "depth"])
def test_refining_cameras_says_what_came_of_it(
    verb: str, ball_scene: SceneMaker, tmp_path: Path, weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycolmap")
    scene = written(ball_scene, tmp_path / "scene", views=2)
    arguments = [verb, str(scene), "-o", str(tmp_path / "out"), "--weights", weights, "--refine-cameras"]
    assert main([*arguments, "--max-size", "64", "--views", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the given cameras were kept: 3 views are needed to refine them, there are 2" in said
    assert (tmp_path / "out" / "refined" / "cameras.json").is_file()


def test_reconstruct_says_where_the_result_is(
    ball_scene: SceneMaker, tmp_path: Path, weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = written(ball_scene, tmp_path / "scene", views=3)
    arguments = ["reconstruct", str(scene), "-o", str(tmp_path / "out"), "--weights", weights, "-q", "fast"]
    assert main([*arguments, "--min-confidence", "0", "--min-views", "1", "--max-reprojection", "9"]) == 0
    said = capsys.readouterr().out
    assert str(tmp_path / "out" / "cloud.ply") in said and "report.html" in said
    assert (tmp_path / "out" / "run.json").exists() and len(
        list((tmp_path / "out" / "depth").glob("*.npz"))
    ) == 3
    assert main([*arguments, "--views", "2"]) == 2  # other settings in the same folder
    assert "views 4 there, 2 now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reconstruct", "nowhere", "-o", "out"], "no such folder"),
        (["depth", "nowhere", "-o", "out"], "no such folder"),
        (["fuse", "nowhere", "-o", "out"], "no such folder"),
        (["view", "nowhere"], "there is no cloud"),
    ],
)
def test_mistakes_end_in_one_sentence(
    arguments: list[str], sentence: str, weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["--weights", weights] if arguments[0] in ("reconstruct", "depth") else []
    assert main([*arguments, *extra]) == 2
    said = capsys.readouterr().err
    assert sentence in said and "Traceback" not in said


NUMBERS = [
    (["--box", "nan", "0", "0", "1", "1", "1"], "box must be finite numbers, got nan 0 0 1 1 1"),
    (["--box", "0", "0", "0", "1", "1", "inf"], "box must be finite numbers"),
    (["--max-reprojection", "nan"], "--max-reprojection must be positive and finite, got nan"),
    (["--max-reprojection", "inf"], "--max-reprojection must be positive and finite, got inf"),
    (["--max-relative-depth", "nan"], "--max-relative-depth must be positive and finite"),
    (["--min-confidence", "nan"], "--min-confidence must lie in 0..1"),
    (["--blank-confidence", "nan"], "--blank-confidence must lie in 0..1"),
    (["--voxel-size", "nan"], "--voxel-size must be positive and finite"),
    (["--depth-range", "nan", "2"], "--depth-range NEAR FAR must satisfy"),
    (["--max-memory", "nan"], "--max-memory (GiB) must be positive and finite"),
]


@pytest.mark.parametrize(("flags", "sentence"), NUMBERS, ids=lambda value: str(value)[:24])
def test_numbers_that_are_none_are_refused_before_any_work(
    flags: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reconstruct", "nowhere", "-o", str(tmp_path / "out"), *flags]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["/proc/foo", "/dev/null/out"])
def test_impossible_output_folders_end_in_a_sentence(
    ball_scene: SceneMaker, tmp_path: Path, weights: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = written(ball_scene, tmp_path / "scene", views=2)
    for verb in ("reconstruct", "depth"):
        assert main([verb, str(scene), "-o", out, "--weights", weights]) == 2
        said = capsys.readouterr().err
        assert f"cannot write {out}: " in said and "Errno" not in said


def test_predictions_never_become_the_truth_of_their_own_scene(
    ball_scene: SceneMaker, tmp_path: Path, weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = str(written(ball_scene, tmp_path / "scene", views=3))
    options = ["--weights", weights, "--views", "2", "--max-size", "64"]
    assert main(["reconstruct", scene, "-o", scene, *options]) == 2
    assert "is the scene itself" in capsys.readouterr().err
    assert main(["depth", scene, "-o", str(tmp_path / "out"), *options]) == 0
    shutil.copytree(tmp_path / "out" / "depth", Path(scene) / "depth")
    exported = str(tmp_path / "exported")
    assert main(["convert", scene, exported, "--to", "nerfstudio", "--depth", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    for truth in (scene, str(Path(scene) / "depth"), exported):
        assert main(["evaluate", "depth", str(tmp_path / "out"), truth]) == 2
        assert "prediction" in capsys.readouterr().err


def test_sigterm_keeps_finished_maps_and_the_next_run_goes_on(
    ball_scene: SceneMaker,
    tmp_path: Path,
    weights: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene, out = written(ball_scene, tmp_path / "scene", views=4), tmp_path / "out"
    command = ["depth", str(scene), "-o", str(out), "--weights", weights, "--views", "2", "--max-size", "64"]

    def end_at_two(_: StepBars, stage: str, done: int, total: int, what: str) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(StepBars, "__call__", end_at_two)
        assert main(command) == 143
    assert "stopped by SIGTERM. Finished work is kept" in capsys.readouterr().err
    assert len(list((out / "depth").glob("*.npz"))) == 2 and not list(out.rglob(".*"))
    assert main(command) == 0
    assert "4 depth maps (2 were there already)" in capsys.readouterr().out


def test_fuse_into_a_folder_in_use_is_refused(
    ball_scene: SceneMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ball_scene()
    scene = write_scene(made, tmp_path / "scene", "mvsnet")
    for number, view in enumerate(made.views):
        write_pfm(tmp_path / "pfm" / f"{number:08d}.pfm", true_depth(view.camera).numpy())
    command = ["fuse", str(scene), "--depth", str(tmp_path / "pfm"), "-o"]
    with locked(tmp_path / "out"):
        for target in (tmp_path / "out", tmp_path / "out" / "cloud.ply"):
            assert main([*command, str(target)]) == 2
            assert "is writing here" in capsys.readouterr().err
        assert main([*command, str(tmp_path / "elsewhere.ply")]) == 0


def test_a_number_after_a_dot_is_a_folder_and_letters_are_a_file(
    ball_scene: SceneMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ball_scene(views=3)
    scene = write_scene(made, tmp_path / "scene", "mvsnet")
    for number, view in enumerate(made.views):
        write_pfm(tmp_path / "pfm" / f"{number:08d}.pfm", true_depth(view.camera).numpy())
    command = ["fuse", str(scene), "--depth", str(tmp_path / "pfm"), "-o"]
    for name in ("results_v1.2", "run.v2"):
        assert main([*command, str(tmp_path / name)]) == 0
        assert (tmp_path / name / "cloud.ply").is_file()
    capsys.readouterr()
    for name in ("cloud.obj", "cloud.PCD", "cloud.e57", "cloud.txt"):
        assert main([*command, str(tmp_path / name)]) == 2
        assert ".ply, .las, .laz, .xyz" in capsys.readouterr().err
        assert not (tmp_path / name).exists()


def test_fuse_reads_depth_maps_of_others(ball_scene: SceneMaker, tmp_path: Path) -> None:
    made = ball_scene()
    scene = write_scene(made, tmp_path / "scene", "mvsnet")
    for i, view in enumerate(made.views):
        name = sorted((scene / "images").iterdir())[i].stem
        write_pfm(tmp_path / "pfm" / f"{name}.pfm", true_depth(view.camera).numpy())
        write_depth(tmp_path / "millimetres" / f"{name}.png", true_depth(view.camera) * 1000)
    common = ["fuse", str(scene), "--min-views", "2"]
    assert main([*common, "-o", str(tmp_path / "a.ply"), "--depth", str(tmp_path / "pfm")]) == 0
    scaled = ["--depth", str(tmp_path / "millimetres"), "--depth-scale", "0.001"]
    assert main([*common, "-o", str(tmp_path / "b.ply"), *scaled]) == 0
    first, second = PointCloud.load(tmp_path / "a.ply"), PointCloud.load(tmp_path / "b.ply")
    assert len(first) > 500 and abs(len(first) - len(second)) < 0.1 * len(first)
    assert abs(float(np.median(first.xyz.norm(dim=-1))) - float(np.median(second.xyz.norm(dim=-1)))) < 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a thing of Linux")
def test_a_full_disk_is_said_and_finished_work_kept(
    ball_scene: SceneMaker, tmp_path: Path, weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = written(ball_scene, tmp_path / "scene", views=3)
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], capture_output=True
    ).returncode:
        pytest.skip("no right to mount a small file system")
    try:
        out = full / "out"
        assert main(["reconstruct", str(scene), "-o", str(out), "--weights", weights, "-q", "fast"]) == 2
        assert "disk is full" in capsys.readouterr().err
        finished = list((out / "depth").glob("*.npz"))
        assert finished and all(np.load(path)["depth"].shape == (48, 64) for path in finished)
        assert not list(full.rglob(".gbinet-tmp-*"))
    finally:
        subprocess.run(["umount", str(full)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["depth", "fusion"])
def test_killed_at_any_moment_it_ends_with_the_same_cloud(
    ball_scene: SceneMaker, tmp_path: Path, weights: str, moment: str
) -> None:
    """SIGKILL in the middle of depth or of fusion, then the same command again."""
    scene = written(ball_scene, tmp_path / "scene", views=8, width=160, height=120)
    command = [
        sys.executable, "-m", "gbinet.cli.main", "reconstruct", str(scene), "--weights", weights,
        "-q", "fast", "--min-confidence", "0", "--min-views", "1", "--max-reprojection", "20",
        "--max-relative-depth", "0.5",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, "-o", str(whole)], check=True, env=environment, capture_output=True)
    with subprocess.Popen(
        [*command, "-o", str(broken)], env=environment, stderr=subprocess.DEVNULL
    ) as process:
        wait_for(process, broken, moment)
        process.send_signal(signal.SIGKILL)
    assert not (broken / "cloud.ply").exists()
    done = {p: p.stat().st_mtime_ns for p in (broken / "depth").glob("[0-9]*.npz")}
    assert len(done) == 8 if moment == "fusion" else 0 < len(done) < 8
    subprocess.run([*command, "-o", str(broken)], check=True, env=environment, capture_output=True)
    assert all(p.stat().st_mtime_ns == when for p, when in done.items())  # not computed again
    assert (broken / "cloud.ply").read_bytes() == (whole / "cloud.ply").read_bytes()
    assert len(PointCloud.load(whole / "cloud.ply")) > 0


def wait_for(process: subprocess.Popen[bytes], out: Path, moment: str) -> None:
    """Until two depth maps are there, or the cloud is being written."""
    for _ in range(6000):
        maps = len(list((out / "depth").glob("*.npz"))) if out.exists() else 0
        if moment == "depth" and maps >= 2:
            return
        if moment == "fusion" and maps == 8 and list(out.glob(".gbinet-tmp-*cloud.ply")):
            return
        assert process.poll() is None, "it ended too soon"
        time.sleep(0.005)
    raise AssertionError("nothing happened")


def test_the_command_is_installed() -> None:
    assert shutil.which("gbinet", path=str(Path(sys.executable).parent))
