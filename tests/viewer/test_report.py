from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker, true_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from gbinet.depthmap import DepthMap
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.viewer.packed import PackedCloud, pack
from gbinet.viewer.report import MAX_BYTES, Report, SmallMaps, view_card, write_report
from gbinet.viewer.report_cloud import CloudSample, cloud_data
from gbinet.viewer.splat import centre_and_radius

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
    card = view_card("<b>view</b>", photo, SmallMaps.of(depth_map, depth_map.valid), "some facts")
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
    assert tags.tags.count("script") == 3 and "alert(1)" in text  # as text: all are ours
    assert tags.tags.count("img") == 4 + 4 + 2 + 1  # one view, four sides, two to compare, a camera's photo
    assert all(address.startswith(("data:", "#")) for address in tags.addresses)
    assert "1,234" in text and "watch out &lt;img&gt;" in text and "&lt;b&gt;view&lt;/b&gt;" in text
    assert not re.search(r"https?://", text)


def test_the_slider_of_views_starts_where_it_begins_to_matter(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2)
    cloud = cloud_of(scene)
    assert cloud.num_views is not None
    cloud = cloud[cloud.num_views >= 3]
    text = write_report(tmp_path / "report.html", report_of(scene, cloud)).read_text()
    assert 'id="min-views" type="range" min="3" max="5" step="1" value="3"' in text


def unpack(packed: PackedCloud) -> dict[str, NDArray[Any]]:
    """What report.js sees: position [N, 3] uint16, colour [N, 3], views, confidence and size [N] uint8."""
    parts, at = [], 0
    for length, count in zip(packed.lengths, packed.counts, strict=True):
        raw = zlib.decompress(base64.b64decode(packed.data[at : at + length]))
        at += length
        planes = np.frombuffer(raw, np.uint8).reshape(12, count).astype(np.uint16)
        folded = planes[:3] | (planes[3:6] << 8)
        steps = (folded >> 1) ^ (0 - (folded & 1))
        values = np.concatenate([steps, planes[6:]]).cumsum(1, dtype=np.uint16)
        values[3:] &= 255
        parts.append(values)
    values = np.concatenate(parts, axis=1) if parts else np.zeros((9, 0), np.uint16)
    small = values[3:].astype(np.uint8)
    return {
        "position": values[:3].T,
        "colour": small[:3].T,
        "views": small[3],
        "confidence": small[4],
        "size": small[5],
    }


def packed_of(data: dict[str, Any]) -> PackedCloud:
    return PackedCloud(data["points"], data["lengths"], data["counts"], data["spacing"])


def test_the_drawn_points_are_those_of_the_cloud(ball_scene: SceneMaker) -> None:
    """Up to the rounding of positions and colours, in another order."""
    scene = ball_scene(views=2)
    cloud = cloud_of(scene)
    data = cloud_data(cloud, scene)
    drawn = unpack(packed_of(data))
    centre, radius = centre_and_radius(cloud)
    inside = cloud[((cloud.xyz.double() - centre).abs() <= 3 * radius).all(-1)]
    assert len(drawn["position"]) == len(inside) == sum(data["counts"])
    world = torch.from_numpy(drawn["position"] / 65535 * 2 - 1) * 3 * radius + centre
    distance, nearest = torch.cdist(world, inside.xyz.double()).min(1)
    assert distance.max() < 0.3 * 4 * data["spacing"] * 3 * radius  # of the typical spacing
    assert inside.num_views is not None and inside.confidence is not None
    assert (drawn["colour"] == [252, 40, 40]).all()
    same = torch.from_numpy(drawn["views"]) == inside.num_views[nearest]
    assert same.double().mean() > 0.9  # where rounding moved a point to its neighbour, it has the other's
    assert np.bincount(drawn["views"]).tolist() == inside.num_views.bincount().tolist()
    json.dumps(data)


def test_cameras_name_the_pictures_of_their_photos(ball_scene: SceneMaker) -> None:
    scene = ball_scene(views=2)
    name = scene.views[1].name
    first, second = cloud_data(cloud_of(scene), scene, {name: "view-1"})["cameras"]
    assert first["card"] is None and second == {**second, "name": name, "card": "view-1"}
    assert len(first["points"]) == 5 * 3  # a centre and four corners


def test_a_large_cloud_fits_into_a_mail(ball_scene: SceneMaker, tmp_path: Path) -> None:
    """Whatever the size of the cloud: what does not fit is left out at random, and points grow larger."""
    scene = ball_scene(views=2)
    generator = torch.Generator().manual_seed(0)
    noise = PointCloud(torch.rand(300_000, 3, generator=generator))  # nothing to compress
    small = cloud_data(noise, scene, max_bytes=lambda: 400_000)
    whole = cloud_data(noise, scene, max_bytes=lambda: 40_000_000)
    assert len(small["points"]) <= 400_000 < len(whole["points"])
    count, everything = sum(small["counts"]), sum(whole["counts"])
    assert everything == 300_000 > count > 20_000
    assert small["spacing"] == pytest.approx(whole["spacing"] * (everything / count) ** 0.5)
    positions = unpack(packed_of(small))["position"] / 65535
    low, high = positions.min(0), positions.max(0)
    assert np.abs(positions.mean(0) - (low + high) / 2).max() < 0.01  # a fair share
    assert write_report(tmp_path / "r.html", report_of(scene, noise)).stat().st_size < MAX_BYTES


@settings(max_examples=30)
@given(count=st.integers(0, 300), seed=st.integers(0, 9))
def test_packing_loses_no_point(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    local = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 2 - 1
    views = torch.randint(1, 256, (count,), generator=generator, dtype=torch.uint8)
    drawn = unpack(pack(PointCloud(local, num_views=views), local, lambda: 1_000_000))
    assert sorted(drawn["views"].tolist()) == sorted(views.tolist())
    assert drawn["position"].shape == (count, 3) and drawn["size"].max(initial=0) < 16 * 4


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


@settings(max_examples=30)
@given(counts=st.lists(st.integers(0, 60), max_size=12), limit=st.integers(1, 200))
def test_a_sample_has_all_points_in_their_order_while_there_is_room(counts: list[int], limit: int) -> None:
    sample, total = CloudSample(limit), sum(counts)
    numbers = torch.arange(float(total))[:, None].expand(total, 3)
    for part in numbers.split(counts) if counts else ():
        sample.add(PointCloud(part, normals=torch.zeros(len(part), 3)))
    kept = sample.cloud.xyz[:, 0]
    assert len(kept) == min(total, limit) and bool((kept.diff() > 0).all())
    assert sample.cloud.normals is None


@pytest.mark.parametrize("step", [0.004, 0.02])
def test_points_of_a_plane_are_as_large_as_they_are_far_apart(step: float) -> None:
    """Whatever their order: where a second, coarser plane stands beside it, its points are larger."""
    line, coarse = torch.arange(-0.9, 0.9, step), torch.arange(-0.9, 0.9, 2.5 * step)
    planes = [
        torch.cartesian_prod(side, side, height)
        for side, height in ((line, torch.tensor([-0.5])), (coarse, torch.tensor([0.5])))
    ]
    local = torch.cat(planes).double()
    packed = pack(PointCloud(local), local[torch.randperm(len(local))], lambda: 10_000_000)
    drawn = unpack(packed)
    spacing = packed.spacing * 2.0 ** (drawn["size"] / 16)
    upper = drawn["position"][:, 2] > 32768
    assert np.median(spacing[~upper]) == pytest.approx(step, rel=0.3)
    assert np.median(spacing[upper]) == pytest.approx(2.5 * step, rel=0.3)


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


_HANDS = """<script>
addEventListener("load", async () => {
  const canvas = document.getElementById("cloud"), list = document.getElementById("camera");
  while (canvas.dataset.ready !== "yes") await new Promise((done) => setTimeout(done, 50));
  const found = { wide: document.documentElement.scrollWidth - innerWidth };
  found.drawn = Number(canvas.dataset.drawn);
  found.cameras = list.options.length - 1;
  list.value = "1";
  list.dispatchEvent(new Event("input"));
  const box = document.getElementById("camera-photo");
  found.camera = box.hidden ? "" : box.querySelector("b").textContent;
  document.querySelectorAll(".picture")[1].click();
  const dialog = document.getElementById("compare");
  found.compared = [dialog.open, dialog.querySelector(".over").alt, dialog.querySelector(".under").alt];
  document.title = "found " + JSON.stringify(found);
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_hands_find_what_they_look_for_on_a_phone(ball_scene: SceneMaker, tmp_path: Path) -> None:
    """Nothing is wider than 390 px, points come, a camera shows its name, a click compares two pictures."""
    scene = ball_scene(views=2)
    path = write_report(tmp_path / "report.html", report_of(scene, cloud_of(scene)))
    path.write_text(path.read_text() + _HANDS)
    arguments = [
        "--headless", "--no-sandbox", "--no-first-run", "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'profile'}", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
        "--window-size=390,844", "--virtual-time-budget=8000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    assert CHROMIUM is not None
    run = subprocess.run([CHROMIUM, *arguments], capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>found (.*?)</title>", run.stdout)
    assert title is not None, run.stdout[:2000]
    found = json.loads(html.unescape(title[1]))
    assert found["wide"] <= 0 and found["drawn"] > 1000 and found["cameras"] == 2
    assert found["camera"] == scene.views[1].name
    assert found["compared"] == [True, "depth of <b>view</b>", "photo of <b>view</b>"]


def test_legends_name_the_unit_where_it_is_known(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2)
    page = report_of(scene, cloud_of(scene))
    unknown = write_report(tmp_path / "unknown.html", page).read_text()
    metres = write_report(tmp_path / "metres.html", replace(page, unit="m")).read_text()
    assert re.search(r"far \d+(\.\d+)? <i", unknown) and "unit of the scene" in unknown
    assert re.search(r"far \d+(\.\d+)? m <i", metres) and "unit of the scene" not in metres
