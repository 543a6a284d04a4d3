"""`gbinet benchmark` measures, and says what it measured."""

import json
import os
import signal
from pathlib import Path

import pytest

from gbinet.cli.main import main


def test_speed_of_a_small_depth_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    options = ["--size", "64x64", "--views", "2", "--repeat", "1", "--device", "cpu", "-o", str(out)]
    assert main(["benchmark", "speed", *options]) == 0
    (cost,) = json.loads(out.read_text())["costs"]
    assert (cost["width"], cost["height"], cost["views"]) == (64, 64, 2)
    assert cost["milliseconds"] > 0
    assert "64x64" in capsys.readouterr().out


@pytest.mark.slow
def test_memory_grows_with_pixels_and_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "memory.json"
    assert main(["benchmark", "memory", "--size", "640x512", "--device", "cpu", "-o", str(out)]) == 0
    small, large, more = (c["peak_mib"] for c in json.loads(out.read_text())["costs"])
    assert small < large < more
    assert "for each megapixel" in capsys.readouterr().out


def test_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "speed", "--views", "1", "--device", "cpu"]) == 2
    assert "at least 2 views" in capsys.readouterr().err


def _killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_the_system_kills_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gbinet.inference.resources.resources_of_depth_map", _killed)
    assert main(["benchmark", "memory", "--size", "64x64", "--device", "cpu"]) == 2
    assert "5 views of 32x32 was ended, most likely for lack of memory" in capsys.readouterr().err
