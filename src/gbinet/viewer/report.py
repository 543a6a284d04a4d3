"""report.html: one file that opens in any browser, with all that is needed to judge a reconstruction."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.formats.atomic import write_text
from gbinet.formats.image import shrunk
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.viewer import page
from gbinet.viewer.colour import UNKNOWN, colour_span, colourise, colourise_depth
from gbinet.viewer.report_cloud import cloud_data, side_views, views_of

Pixels = NDArray[np.uint8]
MAX_BYTES = 15_000_000  # of the page: it can be sent by mail
_PICTURE = 480  # px, longer side
_MAX_VIEWS = 60  # views shown; of more, every n-th
KINDS = ("photo", "depth", "confidence", "kept")


@dataclass(frozen=True)
class ViewCard:
    """One view in the report."""

    name: str
    facts: str  # a line of numbers
    pictures: tuple[str, ...]  # data URIs: photo, depth, confidence, kept
    depths: tuple[float, float] | None = None  # of the lightest and the darkest colour, in the scene's unit


@dataclass(frozen=True)
class Report:
    """The contents of the page, from top to bottom."""

    title: str
    subtitle: str
    numbers: Sequence[tuple[str, str]]  # label, value
    warnings: Sequence[str] = ()
    cloud: PointCloud | None = None  # thinned
    scene: Scene | None = None  # for the cameras
    views: Sequence[ViewCard] = ()
    every: int = 1  # of all views, each n-th is among them
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    unit: str = ""  # of depth, such as m; nothing where it is not known


def write_report(path: Path, report: Report) -> Path:
    numbers = "".join(page.number(k, v) for k, v in report.numbers)
    parts = [f'<dl class="numbers">{numbers}</dl>', page.warnings(report.warnings)]
    views = _views_section(report) if report.views else ""
    tables = ""
    if report.tables:
        inside = "".join(page.table(title, values) for title, values in report.tables.items())
        tables = f'<h2>Settings and figures</h2><div class="tables">{inside}</div>'
    data = None
    if report.cloud is not None and report.scene is not None:
        taken = sum(map(len, (*parts, views, tables))) + 200_000
        cards = {card.name: _card_id(i) for i, card in enumerate(report.views)}
        with ThreadPoolExecutor(1, "sides") as beside:
            sides = beside.submit(_sides_section, report.cloud, report.scene)

            def room() -> int:
                return max(MAX_BYTES - taken - len(sides.result()), 1_000_000)

            data = cloud_data(report.cloud, report.scene, cards, room)
        parts.append(page.cloud(sum(data["counts"]), views_of(report.cloud)) + sides.result())
    parts += [views, tables]
    return write_text(path, page.whole(report.title, report.subtitle, "\n".join(parts), data))


def data_uri(pixels: Pixels, quality: int = 78) -> str:
    """[H, W, 3] -> a picture inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", quality=quality, method=2)  # as small, in half the time
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True)
class SmallMaps:
    """Every n-th pixel of a view's maps, on the CPU: what its pictures are made from."""

    depth: NDArray[np.float32]
    kept: NDArray[np.bool_]
    confidence: NDArray[np.float32] | None

    @staticmethod
    def of(depth_map: DepthMap, kept: Tensor) -> SmallMaps:
        """From maps on any device; the result does not keep them alive."""
        step = max(1, math.ceil(max(depth_map.depth.shape) / _PICTURE))

        def small(values: Tensor) -> NDArray[Any]:
            return values[::step, ::step].contiguous().cpu().numpy()

        confidence = None if depth_map.confidence is None else small(depth_map.confidence)
        return SmallMaps(small(depth_map.depth), small(kept), confidence)


def view_card(name: str, photo: Pixels | None, maps: SmallMaps, facts: str) -> ViewCard:
    """Pictures of one view: photo, depth, confidence, and the depth that passed the filters."""
    depth, kept = maps.depth, maps.kept
    size = (depth.shape[1], depth.shape[0])
    grey = np.full((*depth.shape, 3), UNKNOWN, np.uint8)
    small_photo = grey if photo is None else shrunk(photo, size)
    confidence = grey
    if maps.confidence is not None:
        confidence = colourise(maps.confidence, np.ones_like(kept), "confidence", 0, 1)
    coloured = colourise_depth(depth)
    filtered = np.where(kept[..., None], coloured, np.uint8(UNKNOWN))
    pictures = tuple(data_uri(picture) for picture in (small_photo, coloured, confidence, filtered))
    return ViewCard(name, facts, pictures, colour_span(depth))


def shown_every(views: int) -> int:
    """n, if every n-th of so many views is in the report."""
    return max(1, math.ceil(views / _MAX_VIEWS))


def _views_section(report: Report) -> str:
    scene, every, unit = report.scene, report.every, report.unit
    numbers = {} if scene is None else {view.name: i for i, view in enumerate(scene.views)}
    cards = []
    for index, view in enumerate(report.views):
        pictures = [page.picture(p, kind, view.name) for p, kind in zip(view.pictures, KINDS, strict=True)]
        camera = numbers.get(view.name)
        cards.append(page.view(_card_id(index), view.name, view.facts, pictures, view.depths, unit, camera))
    return page.views(cards, "" if every == 1 else f" Every {every}th view is shown.", KINDS, unit)


def _card_id(index: int) -> str:
    return f"view-{index}"


def _sides_section(cloud: PointCloud, scene: Scene) -> str:
    figures = []
    for side, picture in side_views(cloud, scene):
        caption = "from above" if side == "above" else f"from the {side}"
        figures.append(page.figure(data_uri(picture), caption))
    return f'<h2>From several sides</h2><div class="sides">{"".join(figures)}</div>'
