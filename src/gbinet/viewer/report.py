"""report.html: one file that opens anywhere, with everything a person needs to judge a reconstruction."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.formats.atomic import write_text
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.viewer import page
from gbinet.viewer.colour import colourise, colourise_depth, table
from gbinet.viewer.splat import centre_and_radius, orbit, splat

Pixels = NDArray[np.uint8]
_THUMBNAIL = 280  # px, longer side
_MAX_VIEWS = 60  # views shown; of more, every n-th


@dataclass(frozen=True)
class ViewCard:
    """One view in the report."""

    name: str
    facts: str  # a line of numbers
    pictures: tuple[str, ...]  # data URIs: photo, depth, confidence, kept


@dataclass(frozen=True)
class Report:
    """What the page shows, in its order."""

    title: str
    subtitle: str
    numbers: Sequence[tuple[str, str]]  # label, value
    warnings: Sequence[str] = ()
    cloud: PointCloud | None = None  # thinned
    scene: Scene | None = None  # for the cameras
    views: Sequence[ViewCard] = ()
    every: int = 1  # of all views, each n-th is among them
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def write_report(path: Path, report: Report) -> Path:
    parts = ['<div class="numbers">', *(page.number(k, v) for k, v in report.numbers), "</div>"]
    parts.append(page.warnings(report.warnings))
    data = None
    if report.cloud is not None and report.scene is not None:
        data = cloud_data(report.cloud, report.scene)
        parts.append(_cloud_section(report.cloud, report.scene))
    if report.views:
        parts.append(_views_section(report.views, report.every))
    if report.tables:
        tables = "".join(page.table(title, values) for title, values in report.tables.items())
        parts.append(f'<h2>Settings and figures</h2><div class="tables">{tables}</div>')
    return write_text(path, page.whole(report.title, report.subtitle, "\n".join(parts), data))


# ---- pictures ----


def data_uri(pixels: Pixels, quality: int = 82) -> str:
    """[H, W, 3] -> a JPEG inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def view_card(name: str, photo: Pixels | None, depth_map: DepthMap, kept: Tensor, facts: str) -> ViewCard:
    """Thumbnails of one view: photo, depth, confidence, and the depth that passed the filters."""
    height, width = depth_map.depth.shape
    step = max(1, math.ceil(max(height, width) / _THUMBNAIL))
    depth = depth_map.depth[::step, ::step].cpu().numpy()
    keep = kept[::step, ::step].cpu().numpy()
    size = (depth.shape[1], depth.shape[0])
    grey = np.full((*depth.shape, 3), 58, np.uint8)
    shown = grey if photo is None else np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BOX))
    confidence = grey
    if depth_map.confidence is not None:
        values = depth_map.confidence[::step, ::step].cpu().numpy()
        confidence = colourise(values, np.ones_like(keep), "confidence", 0, 1)
    coloured = colourise_depth(depth)
    filtered = np.where(keep[..., None], coloured, np.uint8(58))
    pictures = tuple(data_uri(picture) for picture in (shown, coloured, confidence, filtered))
    return ViewCard(name, facts, pictures)


def shown_every(views: int) -> int:
    """Of so many views, each n-th has a place in the report."""
    return max(1, math.ceil(views / _MAX_VIEWS))


def _views_section(views: Sequence[ViewCard], every: int) -> str:
    captions = ("photo", "depth", "confidence", "kept")
    cards = [
        page.view(v.name, v.facts, [page.figure(p, c) for p, c in zip(v.pictures, captions, strict=True)])
        for v in views
    ]
    some = "" if every == 1 else f" Every {every}th view is shown."
    legend = (
        f'<div class="legend"><span>depth: far {_bar("depth")} near</span>'
        f"<span>confidence: 0 {_bar('confidence')} 1</span>"
        "<span>grey: no depth, or dropped by a filter</span></div>"
    )
    return (
        f'<h2>Views</h2><p class="note">Kept: what other views confirmed.{some}</p>{legend}{"".join(cards)}'
    )


def _bar(name: Any) -> str:
    stops = ", ".join(f"rgb({r},{g},{b})" for r, g, b in table(name, 9))
    return f'<i style="background:linear-gradient(90deg,{stops})"></i>'


def _cloud_section(cloud: PointCloud, scene: Scene) -> str:
    most = max_views(cloud)
    label = "the cloud, to turn with the mouse or the arrow keys"
    canvas = f'<canvas id="cloud" tabindex="0" aria-label="{label}"></canvas>'
    message = '<div class="message" id="cloud-message"></div>'
    shown = "".join(page.figure(data_uri(picture), caption) for caption, picture in side_views(cloud, scene))
    return (
        '<h2>Cloud</h2><p class="note">Drag to turn, scroll to zoom, shift-drag to move. '
        f"{len(cloud):,} of the points are drawn here; cloud.ply has them all.</p>"
        f'<div class="viewport">{canvas}{message}{page.controls(most)}</div>'
        f'<h2>From several sides</h2><div class="sides">{shown}</div>'
    )


def side_views(
    cloud: PointCloud, scene: Scene, width: int = 560, height: int = 420
) -> list[tuple[str, Pixels]]:
    """The cloud from where the photos were taken, from both sides and from above."""
    centre, radius = centre_and_radius(cloud)
    front, up = front_and_up(scene, centre)
    focal = 0.9 * height
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
    sides = {"front": (0.0, 12.0), "left": (-50.0, 15.0), "right": (50.0, 15.0), "above": (0.0, 70.0)}
    pictures = []
    for caption, (turn, lift) in sides.items():
        camera = Camera(K, orbit(centre, 2.1 * radius, front, up, turn, lift), width, height)
        pictures.append((caption, splat(cloud, camera, size=3)))
    return pictures


def front_and_up(scene: Scene, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Directions from the cloud to the cameras, and against the cameras' mean down."""
    cameras = [view.camera for view in scene.views]
    front = torch.stack([c.centre.double() for c in cameras]).mean(0) - centre
    down = torch.stack([c.cam_from_world[1, :3].double() for c in cameras]).mean(0)
    return front, -down


# ---- data of the interactive view ----


def max_views(cloud: PointCloud) -> int:
    return 1 if cloud.num_views is None or len(cloud) == 0 else max(1, int(cloud.num_views.max()))


def cloud_data(cloud: PointCloud, scene: Scene) -> dict[str, object]:
    """What report.js draws: positions as 16-bit integers in a cube around the bulk of the cloud."""
    centre, radius = centre_and_radius(cloud)
    reach = 3 * radius  # far outliers are left out: they would take the precision from the rest
    local = (cloud.xyz.double() - centre) / reach
    near = (local.abs() <= 1).all(-1)
    chosen, local = cloud[near], local[near]
    count = len(chosen)
    ones = torch.full((count,), 255, dtype=torch.uint8)
    confidence = ones if chosen.confidence is None else (chosen.confidence.clamp(0, 1) * 255).to(torch.uint8)
    colour = torch.full((count, 3), 200, dtype=torch.uint8) if chosen.rgb is None else chosen.rgb
    front, up = front_and_up(scene, centre)
    pose = orbit(torch.zeros(3, dtype=torch.float64), 1.0, front, up, 0, 0)
    right, down, forward = pose[:3, :3]
    return {
        "count": count,
        "position": _packed(((local + 1) / 2 * 65535).round().numpy().astype("<u2")),
        "colour": _packed(colour.numpy()),
        "views": _packed((ones if chosen.num_views is None else chosen.num_views).numpy()),
        "confidence": _packed(confidence.numpy()),
        "maxViews": max_views(chosen),
        "axes": [right.tolist(), (-forward).tolist(), (-down).tolist()],  # side, front, up
        "target": [0.0, 0.0, 0.0],
        "distance": 2.1 * radius / reach,
        "spacing": 1.6 / math.sqrt(max(count, 20_000)) * radius / reach,
        "lines": [round(x, 4) for x in _frusta(scene, centre, reach, 0.12 * radius)],
    }


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _frusta(scene: Scene, centre: Tensor, reach: float, length: float) -> list[float]:
    """Line segments of all cameras, xyz after xyz, in the cube's units."""
    corners_of = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
    numbers: list[float] = []
    for view in scene.views[:500]:
        camera = view.camera.to("cpu", torch.float64)
        w, h = camera.width, camera.height
        pixels = torch.tensor([[0, 0], [w, 0], [w, h], [0, h]], dtype=torch.float64)
        corners = camera.unproject(pixels, torch.full((4,), length, dtype=torch.float64))
        points = (torch.cat([camera.centre[None], corners]) - centre) / reach  # [5, 3]
        numbers += points[torch.tensor(corners_of)].flatten().tolist()
    return numbers


class CloudSample:
    """A random share of all points that pass by, at most `limit`; every point has the same chance."""

    def __init__(self, limit: int = 120_000) -> None:
        self.limit = limit
        self._random = torch.Generator().manual_seed(0)
        self._keys = torch.zeros(0)
        self._points: PointCloud | None = None

    def add(self, cloud: PointCloud) -> None:
        new = torch.rand(len(cloud), generator=self._random)
        if len(self._keys) == self.limit:  # most points have no chance any more
            better = new < self._keys[-1]
            new, cloud = new[better], cloud[better]
        keys = torch.cat([self._keys, new])
        points = cloud if self._points is None else PointCloud.cat([self._points, cloud])
        if len(keys) > self.limit:
            chosen = keys.argsort()[: self.limit]  # the last one is the worst
            keys, points = keys[chosen], points[chosen]
        self._keys, self._points = keys, points

    @property
    def cloud(self) -> PointCloud:
        return PointCloud(torch.zeros(0, 3)) if self._points is None else self._points
