from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker, true_depth
from PIL import Image

from gbinet.depthmap import DepthMap
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.viewer.report import CloudSample, Report, cloud_data, view_card, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def cloud_of(scene: Scene) -> PointCloud:
    depth_map = DepthMap(true_depth(scene.views[0].camera), scene.views[0].camera)
    xyz = depth_map.points()[depth_map.valid].float()
    count = len(xyz)
    rgb = torch.tensor([[255, 40, 40]], dtype=torch.uint8).repeat(count, 1)
    views = torch.arange(count).remainder(5).to(torch.uint8) + 1
    return PointCloud(xyz, rgb, confidence=torch.linspace(0, 1, count), num_views=views)


def report_of(scene: Scene, cloud: PointCloud) -> Report:
    depth_map = DepthMap(true_depth(scene.views[0].camera), scene.views[0].camera)
    photo = np.array(Image.open(scene.views[0].image_path))
    card = view_card("<b>view</b>", photo, depth_map, depth_map.valid, "some facts")
    return Report(
        title="</script><script>alert(1)</script>",
        subtitle="a & b",
        numbers=[("points", "1,234")],
        warnings=["watch out <img>"],
        cloud=cloud,
        scene=scene,
        views=[card],
        tables={"Depth": {"views": 5}},
    )


class Tags(HTMLParser):
    """Collects tags and the addresses that the page asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]


def test_the_page_is_whole_escaped_and_asks_the_network_for_nothing(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene(views=2)
    path = write_report(tmp_path / "report.html", report_of(scene, cloud_of(scene)))
    text = path.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.tags.count("script") == 2 and "alert(1)" in text  # as text: both are ours
    assert tags.tags.count("img") == 4 + 4  # one view, four sides
    assert all(address.startswith("data:") for address in tags.addresses)
    assert "1,234" in text and "watch out &lt;img&gt;" in text and "&lt;b&gt;view&lt;/b&gt;" in text
    assert not re.search(r"https?://", text)


def test_the_drawn_positions_are_those_of_the_cloud(ball_scene: SceneMaker) -> None:
    scene = ball_scene(views=2)
    cloud = cloud_of(scene)
    data = cloud_data(cloud, scene)
    packed = np.frombuffer(base64.b64decode(str(data["position"])), "<u2").reshape(-1, 3)
    assert data["count"] == len(packed) <= len(cloud)
    drawn = torch.from_numpy(packed / 65535 * 2 - 1)
    from gbinet.viewer.splat import centre_and_radius

    centre, radius = centre_and_radius(cloud)
    world = drawn * 3 * radius + centre
    inside = ((cloud.xyz.double() - centre).abs() <= 3 * radius).all(-1)
    assert (world - cloud.xyz[inside].double()).abs().max() < 1e-3 * radius
    assert len(data["lines"]) == 2 * 8 * 2 * 3  # type: ignore[arg-type]  # views, edges, ends, xyz
    json.dumps(data)


def test_a_sample_is_bounded_and_fair() -> None:
    sample = CloudSample(limit=500)
    for start in range(0, 10_000, 1000):
        xyz = torch.zeros(1000, 3)
        xyz[:, 0] = torch.arange(start, start + 1000)
        sample.add(PointCloud(xyz))
    values = sample.cloud.xyz[:, 0]
    assert len(values) == 500 == len(values.unique())
    counts = torch.histc(values, 10, 0, 10_000)
    assert counts.min() > 20 and counts.max() < 90  # about 50 of each thousand
    assert len(CloudSample().cloud) == 0


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("empty", [False, True])
def test_a_browser_draws_it_without_complaint(ball_scene: SceneMaker, tmp_path: Path, empty: bool) -> None:
    scene = ball_scene(views=2)
    cloud = cloud_of(scene)
    path = write_report(tmp_path / "report.html", report_of(scene, cloud[:0] if empty else cloud))
    shot = tmp_path / "shot.png"
    arguments = [
        "--headless", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
        "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--enable-logging=stderr",
        "--window-size=1000,900", "--virtual-time-budget=4000", f"--screenshot={shot}", path.as_uri(),
    ]  # fmt: skip
    assert CHROMIUM is not None
    run = subprocess.run([CHROMIUM, *arguments], capture_output=True, text=True, timeout=120)
    complaints = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
    pixels = np.array(Image.open(shot).convert("RGB")).astype(int)
    red = (pixels[..., 0] > 200) & (pixels[..., 1] < 90) & (pixels[..., 2] < 90)
    assert (red.sum() > 500) != empty  # the cloud is red, nothing else on the first screen is
