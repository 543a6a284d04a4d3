"""Viewer and report as people see them: in a browser, with nothing to complain about in its console."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker, true_depth
from browser import AXE, CHROMIUM, hindrances, photograph
from documents import ROOT

from gbinet.depthmap import DepthMap
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.viewer.report import Report, write_report
from gbinet.viewer.server import serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
]
_HARMLESS = ("GPU stall", "GL Driver", "swiftshader", "WebGL", "DevTools", "Automatic fallback")
_VISER = ("Detected chrome", "Connecting to: ws", "Connected! ws", "THREE.Clock")  # what it tells by itself


def coloured_cloud(scene: Scene) -> PointCloud:
    """All that the views see, in pure red."""
    points = [
        DepthMap(true_depth(v.camera), v.camera).points()[true_depth(v.camera) > 0] for v in scene.views
    ]
    xyz = torch.cat(points).float()
    return PointCloud(xyz, rgb=torch.tensor([[255, 0, 0]], dtype=torch.uint8).repeat(len(xyz), 1))


def complaints(console: list[str], harmless: tuple[str, ...] = _HARMLESS) -> list[str]:
    return [line for line in console if not any(word in line for word in harmless)]


def red(picture: np.ndarray) -> float:
    """Share of the picture that is red."""
    r, g, b = picture.astype(int).transpose(2, 0, 1)
    return float(((r > 150) & (g < 110) & (b < 110)).mean())


def test_the_viewer_shows_the_cloud(ball_scene: SceneMaker, tmp_path: Path) -> None:
    pytest.importorskip("viser")
    scene = ball_scene(views=4, width=192, height=144)
    server = serve(coloured_cloud(scene), scene, None, port=8765, name="ball")
    try:
        time.sleep(1)
        picture, console = photograph(f"http://localhost:{server.get_port()}", tmp_path)
    finally:
        server.stop()
    assert red(picture) > 0.003
    assert complaints(console, (*_HARMLESS, *_VISER)) == []


def test_the_report_shows_the_cloud(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=4)
    page = Report("ball", "a test", [("points", "many")], (), coloured_cloud(scene), scene)
    path = write_report(tmp_path / "report.html", page)
    picture, console = photograph(path.as_uri(), tmp_path, 5)
    assert red(picture) > 0.01 and complaints(console) == []


@pytest.mark.skipif(AXE is None, reason="no axe-core here: pip install axe-core-python")
def test_the_report_can_be_used_without_sight_or_mouse(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=4)
    page = Report("ball", "a test", [("points", "many")], ("look here",), coloured_cloud(scene), scene)
    path = write_report(tmp_path / "report.html", page)
    assert hindrances(path, tmp_path) == []
    broken = tmp_path / "broken.html"
    broken.write_text(path.read_text().replace("</h1>", '</h1><img src="data:,">'))
    assert [one.split(":")[0] for one in hindrances(broken, tmp_path)] == ["image-alt"]


@pytest.mark.skipif(AXE is None, reason="no axe-core here: pip install axe-core-python")
def test_pages_of_the_site_can_be_used_without_sight_or_mouse(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True)
    for page in ("index", "how-to/own-photos", "reference/command-line", "benchmarks/speed"):
        assert hindrances(site / f"{page}.html", tmp_path) == [], page
