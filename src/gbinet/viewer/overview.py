"""One picture of a scene as it was read: cameras from above and the side, ranges, pairs, photos."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gbinet.errors import GBiNetError
from gbinet.formats.image import read_image
from gbinet.scene import Scene, View
from gbinet.scenes.neighbours import coverage

Array = NDArray[np.float64]
Colour = tuple[int, int, int]

_BACK, _PANEL, _INK, _DIM = (238, 240, 243), (255, 255, 255), (30, 36, 48), (120, 128, 142)
_CAMERA, _PAIR, _NEAR_FAR, _DEPTHS = (196, 62, 38), (118, 148, 206), (54, 98, 172), (240, 160, 60)
_RANGE = (222, 231, 247)
_WIDTH, _GAP = 1600, 16
_MAX_POINTS = 30_000
_THUMBNAILS = 6


@dataclass(frozen=True)
class _Box:
    left: int
    top: int
    width: int
    height: int


def draw_overview(scene: Scene) -> NDArray[np.uint8]:  # [H, W, 3]
    """The picture, 1600 pixels wide."""
    half = (_WIDTH - 3 * _GAP) // 2
    rows = (440, 330, 200)
    canvas = Image.new("RGB", (_WIDTH, sum(rows) + (len(rows) + 1) * _GAP), _BACK)
    draw = ImageDraw.Draw(canvas)
    tops = [_GAP + sum(rows[:i]) + i * _GAP for i in range(3)]
    left, right = _GAP, 2 * _GAP + half
    axes = _axes(scene)
    size = (half, rows[0])
    canvas.paste(_map(size, scene, axes[[0, 2]], "from above"), (left, tops[0]))
    canvas.paste(_map(size, scene, axes[[0, 1]], "from the side"), (right, tops[0]))
    _ranges(draw, _Box(left, tops[1], half, rows[1]), scene)
    _pairs(canvas, draw, _Box(right, tops[1], half, rows[1]), scene)
    _photos(canvas, draw, _Box(left, tops[2], _WIDTH - 2 * _GAP, rows[2]), scene)
    return np.asarray(canvas)


def _font(size: int = 15) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _frame(draw: ImageDraw.ImageDraw, box: _Box, title: str) -> _Box:
    """White panel with a title; the area inside it."""
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    draw.rounded_rectangle(corners, 8, fill=_PANEL)
    draw.text((box.left + 12, box.top + 8), title, _INK, font=_font())
    return _Box(box.left + 12, box.top + 34, box.width - 24, box.height - 46)


# ---- cameras and points ------------------------------------------------------------------------------------


def _axes(scene: Scene) -> Array:
    """World directions for right, up and away in the maps, [3, 3]; up is the mean of the cameras' up."""
    poses = np.stack([view.camera.cam_from_world.numpy() for view in scene.views])  # [V, 4, 4]
    up = -poses[:, 1, :3].mean(0)
    up = up / np.linalg.norm(up) if np.linalg.norm(up) > 0.1 else np.array([0.0, 0.0, 1.0])
    centres = np.stack([view.camera.centre.numpy() for view in scene.views])
    flat = centres - centres.mean(0)
    flat = flat - (flat @ up)[:, None] * up
    # The widest direction lies horizontally; with one camera, its own right side does.
    right = np.linalg.svd(flat, full_matrices=False)[2][0] if len(flat) > 1 else poses[0, 0, :3]
    right = right - (right @ up) * up
    if np.linalg.norm(right) < 1e-6:
        right = np.cross(up, [0.123, 0.456, 0.789])
    right = right / np.linalg.norm(right)
    away = np.cross(up, right)
    turn = -1.0 if float(poses[:, 2, :3].mean(0) @ away) < 0 else 1.0  # look with the cameras, not at them
    return np.stack([turn * right, up, turn * away])


def _map(size: tuple[int, int], scene: Scene, axes: Array, title: str) -> Image.Image:
    """Cameras and points along two axes [2, 3]; an image of its own cuts off lines at its border."""
    canvas = Image.new("RGB", size, _BACK)
    draw = ImageDraw.Draw(canvas)
    inner = _frame(draw, _Box(0, 0, *size), f"{len(scene.views)} cameras {title}")
    centres = np.stack([view.camera.centre.numpy() for view in scene.views]) @ axes.T  # [V, 2]
    ahead = np.stack([view.camera.cam_from_world[2, :3].numpy() for view in scene.views]) @ axes.T
    points, colours = _some_points(scene)
    flat = points @ axes.T  # [P, 2]
    reach = [(v.depth_range.near, v.depth_range.far) if v.depth_range else (0.0, 0.0) for v in scene.views]
    ends = centres[:, None] + ahead[:, None] * np.array(reach)[:, :, None]  # [V, 2, 2] on the axis
    # Points far outside are outliers: the picture shows the middle of them and all cameras.
    extent = [centres, np.quantile(flat, [0.01, 0.99], axis=0) if len(flat) else ends.mean(1)]
    low, high = np.concatenate(extent).min(0), np.concatenate(extent).max(0)
    span = max(float((high - low).max() * 0.02), 1e-9)
    low, high = low - 4 * span, high + 4 * span
    scale = min(inner.width / (high[0] - low[0]), inner.height / (high[1] - low[1]))
    offset = np.array([inner.left + inner.width / 2, inner.top + inner.height / 2])

    def to_canvas(xy: Array) -> Array:
        moved: Array = (xy - (low + high) / 2) * scale * [1, -1] + offset
        return moved

    for near, far in ends:
        draw.line([*map(tuple, to_canvas(np.stack([near, far])).tolist())], _RANGE)
    inside = ((flat >= low) & (flat <= high)).all(-1) if len(flat) else np.zeros(0, bool)
    for (x, y), colour in zip(
        to_canvas(flat[inside]).round().tolist(), colours[inside].tolist(), strict=True
    ):
        draw.point((x, y), tuple(colour))
    positions = to_canvas(centres)
    for index, view in enumerate(scene.views):
        for source in view.sources[:3]:
            draw.line([tuple(positions[index]), tuple(positions[source.index])], _PAIR)
    length = float(np.clip(150 / math.sqrt(len(positions)), 6, 26))
    for position, direction in zip(positions, ahead, strict=True):
        _camera(draw, position, direction * [1, -1] * length)
    return canvas


def _camera(draw: ImageDraw.ImageDraw, position: Array, direction: Array) -> None:
    """A triangle that opens in the viewing direction."""
    side = np.array([-direction[1], direction[0]]) * 0.4
    corners = [tuple(position), tuple(position + direction + side), tuple(position + direction - side)]
    draw.polygon(corners, outline=_CAMERA)
    x, y = position
    draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_CAMERA)


def _some_points(scene: Scene) -> tuple[Array, NDArray[np.uint8]]:
    if scene.points is None or len(scene.points.xyz) == 0:
        return np.zeros((0, 3)), np.zeros((0, 3), np.uint8)
    step = max(1, len(scene.points.xyz) // _MAX_POINTS)
    xyz = scene.points.xyz[::step].numpy()
    rgb = scene.points.rgb
    colours = np.full((len(xyz), 3), 128, np.uint8) if rgb is None else rgb[::step].numpy()
    return xyz, (colours * 0.8).astype(np.uint8)  # darker: they stand on white


# ---- ranges and pairs --------------------------------------------------------------------------------------


def _ranges(draw: ImageDraw.ImageDraw, box: _Box, scene: Scene) -> None:
    title = "depth range of each view" + (", with its sparse depths" if scene.points is not None else "")
    inner = _frame(draw, box, title)
    ranges = [view.depth_range for view in scene.views]
    known = [r for r in ranges if r is not None]
    if not known:
        return
    low, high = 0.0, max(r.far for r in known) * 1.05
    plot = _Box(inner.left + 52, inner.top + 12, inner.width - 52, inner.height - 12)

    def row(depth: float) -> float:
        return plot.top + plot.height * (1 - (depth - low) / (high - low))

    for depth in np.linspace(low, high, 6)[1:]:
        draw.line((plot.left, row(depth), plot.left + plot.width, row(depth)), _BACK)
        draw.text((inner.left, row(depth) - 8), f"{depth:.4g}", _DIM, font=_font(12))
    wide = plot.width / len(ranges)
    for index, limits in enumerate(ranges):
        left = plot.left + index * wide
        right = max(left + 1, left + wide * 0.7)
        if limits is not None:
            draw.rectangle((left, row(limits.far), right, row(limits.near)), outline=_NEAR_FAR, fill=_RANGE)
        for depth in _own_depths(scene, index):
            if low < depth < high:
                draw.line((left + 1, row(depth), right - 1, row(depth)), _DEPTHS)


def _own_depths(scene: Scene, index: int) -> list[float]:
    """A few percentiles of the depths of the points that a view observes."""
    points = scene.points
    if points is None or points.view_index is None or points.track_start is None:
        return []
    start = points.track_start.numpy()
    observations = np.flatnonzero(points.view_index.numpy() == index)
    if len(observations) == 0:
        return []
    rows = np.searchsorted(start, observations, side="right") - 1
    pose = scene.views[index].camera.cam_from_world.numpy()
    depths = points.xyz.numpy()[rows] @ pose[2, :3] + pose[2, 3]
    return [float(d) for d in np.quantile(depths, np.linspace(0.005, 0.995, 40))]


def _pairs(canvas: Image.Image, draw: ImageDraw.ImageDraw, box: _Box, scene: Scene) -> None:
    """Row = reference, column = source; darker = better of its row."""
    count = len(scene.views)
    inner = _frame(draw, box, "source views: row = reference, column = source, darker = better")
    side = min(inner.height, inner.width)
    matrix = np.full((count, count, 3), 246, np.uint8)
    for index, view in enumerate(scene.views):
        best = view.sources[0].score if view.sources else 1.0
        for source in view.sources:
            share = math.sqrt(max(source.score, 0) / best) if best > 0 else 0.0
            colour = [int(210 + (c - 210) * share) for c in _NEAR_FAR]
            matrix[index, source.index] = colour
        matrix[index, index] = 200
    picture = Image.fromarray(matrix).resize((side, side), Image.Resampling.NEAREST)
    canvas.paste(picture, (inner.left, inner.top))
    numbers = [len(view.sources) for view in scene.views]
    span = f"{min(numbers)} to {max(numbers)}" if min(numbers) != max(numbers) else f"{numbers[0]}"
    seen = coverage(scene.views)
    lines = [
        f"{span} sources per view; % = seen by two of the best four",
        *(
            f"{scene.views[i].name[:18]} {seen[i]:.0%}: " + ", ".join(_short(scene, scene.views[i]))
            for i in range(0, count, max(1, count // 12))
        ),
    ]
    for number, line in enumerate(lines[: inner.height // 20]):
        draw.text((inner.left + side + 18, inner.top + 20 * number), line[:58], _DIM, font=_font(13))


def _short(scene: Scene, view: View) -> list[str]:
    return [scene.views[source.index].name[-8:] for source in view.sources[:4]]


# ---- photos ------------------------------------------------------------------------------------------------


def _photos(canvas: Image.Image, draw: ImageDraw.ImageDraw, box: _Box, scene: Scene) -> None:
    inner = _frame(draw, box, "some of the photos")
    wide = inner.width // _THUMBNAILS
    chosen = np.unique(np.linspace(0, len(scene.views) - 1, _THUMBNAILS).round().astype(int)).tolist()
    for slot, view in enumerate(scene.views[index] for index in chosen):
        left = inner.left + slot * wide
        try:
            photo = Image.fromarray(read_image(view.image_path))
        except GBiNetError as error:
            draw.text((left, inner.top), str(error)[:30], _CAMERA, font=_font(12))
            continue
        photo.thumbnail((wide - 10, inner.height - 20))
        canvas.paste(photo, (left, inner.top))
        size = f"{view.name[-16:]}  {view.camera.width}x{view.camera.height}"
        draw.text((left, inner.top + photo.height + 3), size, _DIM, font=_font(12))
