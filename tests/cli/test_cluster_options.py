"""`--cluster` with and without an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from gbinet.cli.cluster_options import ClusterOptions, spelled_out
from gbinet.cli.main import main
from gbinet.cluster.session import ClusterConfig


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (["--cluster"], "local"),
        (["--cluster", "photos", "-o", "out"], "local"),
        (["--cluster", "-o", "out"], "local"),
        (["--cluster", "/data/my:1/photos"], "local"),
        (["--cluster", "auto", "photos"], "auto"),
        (["--cluster", "10.0.0.1:6379"], "10.0.0.1:6379"),
        (["--cluster", "head-node:6379", "photos"], "head-node:6379"),
        (["--cluster", "ray://head:10001"], "ray://head:10001"),
    ],
)
def test_alone_it_means_this_machine(words: list[str], address: str) -> None:
    spelled = spelled_out(words)
    assert spelled[1] == address
    assert [word for word in spelled if word != "local"] == [word for word in words if word != "local"]


def test_settings() -> None:
    assert ClusterOptions().config() is None
    assert ClusterOptions("auto", 3).config() == ClusterConfig("auto", 3)


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fuse", str(tmp_path), "-o", str(tmp_path / "cloud.ply"), "--tiles", "5"])
    assert code == 2 and "-o must be a folder" in capsys.readouterr().err
    code = main(["depth", str(tmp_path), "-o", str(tmp_path / "x"), "--cluster", "--worker-cores", "0"])
    assert code == 2 and "--worker-cores must be positive" in capsys.readouterr().err
