"""What the README shows works: its Python runs as it stands, its commands exist."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from run_notebook import run_notebook
from small_scene import write_small_scene

from gbinet.cli.main import VERBS
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.pointcloud import PointCloud

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.fixture
def box_with_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled weights: those that ship where they exist, else thin random ones."""
    from gbinet.model import weights

    if not (weights.BUNDLED / f"{weights.DEFAULT}.safetensors").exists():
        torch.manual_seed(0)
        small = GBiNet(GBiNetConfig(encoder_width=4, regulariser_width=2))
        small.save(tmp_path / "weights" / f"{weights.DEFAULT}.safetensors")
        monkeypatch.setattr(weights, "BUNDLED", tmp_path / "weights")


@pytest.mark.usefixtures("box_with_weights")
def test_the_python_of_the_first_screen_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    assert code.count("\n") <= 14
    write_small_scene(tmp_path / "my-scene")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readme.py").write_text(code)
    names = runpy.run_path("readme.py")
    assert names["scene"].kind == "mvsnet" and len(names["scene"].views) == 5
    assert names["depth"].depth.shape == (64, 96)
    assert len(PointCloud.load("cloud.ply")) == len(names["cloud"])


def test_the_first_screen_says_it_all() -> None:
    """Within the first 45 lines: a picture, the two commands, a command for one's own photos, Python."""
    screen = "\n".join(README.splitlines()[:45])
    assert "![" in screen and "make demo" in screen and "make test" in screen
    assert "gbinet reconstruct" in screen and "```python" in screen


def test_commands_exist() -> None:
    named = set(
        re.findall(
            r"gbinet ([a-z]+) ", "\n".join([*blocks("bash"), *re.findall(r"`(gbinet [^`]*)`", README)])
        )
    )
    assert {"reconstruct", "depth"} <= named
    assert named <= set(VERBS)
    assert set(re.findall(r"^\| `gbinet ([a-z]+)", README, re.M)) == set(VERBS), "the table of verbs"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M)
    for script in re.findall(r"python (\S+\.py)", README):
        assert (ROOT / script).exists()


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.usefixtures("box_with_weights")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_examples_run_as_they_stand(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder, without arguments."""
    script = shutil.copy(example, tmp_path / example.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [example.name])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_examples_are_numbered_and_explain_themselves() -> None:
    assert len(EXAMPLES) >= 3
    for number, example in enumerate(EXAMPLES, start=1):
        assert example.name.startswith(f"{number:02d}_")
        assert example.read_text().startswith('"""')


@pytest.mark.slow
def test_the_notebook_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder; and the pictures that are stored in it are there again."""
    (path,) = (ROOT / "examples").glob("*.ipynb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    assert pictures_in(run_notebook(path)) == pictures_in(json.loads(path.read_text())) >= 3


def pictures_in(notebook: dict[str, Any]) -> int:
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return sum("image/jpeg" in output.get("data", {}) for output in outputs)
