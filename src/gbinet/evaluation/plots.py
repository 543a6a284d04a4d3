"""Small plots and error colours, drawn with pillow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gbinet.formats.image import write_image

Floats = NDArray[np.floating]

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 46, 60
_SCALE = 2  # drawn larger and shrunk, for smooth lines
_INK, _GRID, _PAPER = (40, 44, 52), (225, 228, 232), (255, 255, 255)
Colour = tuple[int, int, int]
COLOURS: tuple[Colour, ...] = (
    *((31, 99, 178), (214, 96, 32), (46, 140, 87), (140, 70, 160)),
    *((200, 30, 60), (120, 120, 120), (20, 160, 180), (190, 150, 20), (20, 20, 20), (230, 120, 170)),
)
_LEGEND = 150  # px, its width inside the plot; one with longer names, or more of them, stands beside it
_MAX_INSIDE = 4  # names
_LETTER = 7  # px, about, its width in a name

# Small error to large: blue, green, yellow, red. Grey: no answer.
_RAMP = np.array(
    [[38, 60, 148], [40, 140, 160], [120, 190, 90], [250, 215, 70], [235, 120, 40], [170, 20, 40]]
)
NO_ANSWER = (150, 150, 150)


def error_colours(errors: Floats, largest: float) -> NDArray[np.uint8]:
    """Errors [...] -> RGB [..., 3]; `largest` and more has the last colour, NaN is grey."""
    known = np.isfinite(errors) | np.isposinf(errors)
    position = np.clip(np.where(known, errors, 0) / largest, 0, 1) * (len(_RAMP) - 1)
    channels = [np.interp(position, np.arange(len(_RAMP)), _RAMP[:, k]) for k in range(3)]
    colours: NDArray[np.uint8] = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    colours[~known] = NO_ANSWER
    return colours


def ramp(position: float) -> Colour:
    """From red over yellow to blue, for curves that follow each other. position in [0, 1]."""
    red, green, blue = (int(value) for value in error_colours(np.array(1 - position), 1.0))
    return red, green, blue


@dataclass(frozen=True)
class Curve:
    label: str
    x: Floats  # [N]; edges of bars have one more value than y
    y: Floats  # [N]


def plot(
    path: str | Path,
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    mark: float | None = None,
    top: float | None = None,
    bottom: float = 0.0,
    start: float = 0.0,
    x_names: Sequence[str] = (),
    colours: Sequence[Colour] = COLOURS,
) -> Path:
    """Draw curves; one whose x has one more value than y is drawn as bars between these edges.

    mark     x of a dashed vertical line
    top      upper end of the y axis, where it is known; bottom: its lower end
    start    left end of the x axis
    x_names  what stands at 0, 1, 2, ... on the x axis, in place of numbers
    """
    whole = all(bool((curve.x == np.rint(curve.x)).all()) for curve in curves)
    x_ticks = [start + t for t in ticks(max(float(curve.x.max()) for curve in curves) - start, whole)]
    if x_names:
        x_ticks = [float(k) for k in range(len(x_names))]
    y_ticks = [bottom + t for t in ticks((top or max(float(c.y.max()) for c in curves)) - bottom)]
    legend = 20 + _LETTER * max(len(c.label) for c in curves)
    beside = len(curves) > _MAX_INSIDE or (len(curves) > 1 and legend > _LEGEND)
    room = legend + 20 if beside else 0
    image = Image.new("RGB", ((_WIDTH + room) * _SCALE, _HEIGHT * _SCALE), _PAPER)
    draw = ImageDraw.Draw(image)

    def to_canvas(x: float, y: float) -> tuple[float, float]:
        across = min(max((x - start) / (x_ticks[-1] - start), 0), 1) * (_WIDTH - _LEFT - _RIGHT)
        up = min(max((y - bottom) / (y_ticks[-1] - bottom), 0), 1) * (_HEIGHT - _TOP - _BOTTOM)
        return (_LEFT + across) * _SCALE, (_HEIGHT - _BOTTOM - up) * _SCALE

    _draw_axes(draw, to_canvas, x_ticks, y_ticks, x_names)
    _text(draw, (_LEFT, 14), title, 17)
    _text(draw, (_WIDTH / 2, _HEIGHT - 30), x_label, 14, anchor="ma")
    _text(draw, (_WIDTH - _RIGHT, 18), y_label, 13, anchor="ra")
    if mark is not None and mark <= x_ticks[-1]:
        height = y_ticks[-1] - bottom
        for y in bottom + np.arange(0, 1, 0.04) * height:
            draw.line([to_canvas(mark, y), to_canvas(mark, y + 0.02 * height)], fill=_INK, width=2)
    for curve, colour in zip(curves, cycle(colours), strict=False):
        _draw_curve(draw, to_canvas, curve, colour, bottom)
    if len(curves) > 1:
        left, upper = (_WIDTH, _TOP) if beside else _legend_corner(curves, to_canvas)
        for row, (curve, colour) in enumerate(zip(curves, cycle(colours), strict=False)):
            y = upper + 20 * row + 10
            draw.rectangle([v * _SCALE for v in (left, y - 5, left + 12, y + 5)], fill=colour)
            _text(draw, (left + 20, y), curve.label, 13, anchor="lm")
    size = (_WIDTH + room, _HEIGHT)
    return write_image(Path(path), np.asarray(image.resize(size, Image.Resampling.LANCZOS)))


def ticks(largest: float, whole: bool = False) -> list[float]:
    """Round numbers from 0 to at least `largest`; whole ones on request."""
    if not (math.isfinite(largest) and largest > 0):
        largest = 1.0
    power = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power * 6 >= largest)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    return [step * k for k in range(math.ceil(largest / step * (1 - 1e-9)) + 1)]


ToCanvas = Callable[[float, float], tuple[float, float]]


def _draw_axes(
    draw: ImageDraw.ImageDraw,
    to_canvas: ToCanvas,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_names: Sequence[str],
) -> None:
    bottom = y_ticks[0]
    for x, name in zip(x_ticks, x_names or [f"{x:.4g}" for x in x_ticks], strict=True):
        draw.line([to_canvas(x, bottom), to_canvas(x, y_ticks[-1])], fill=_GRID, width=_SCALE)
        at = to_canvas(x, bottom)
        _text(draw, (at[0] / _SCALE, at[1] / _SCALE + 8), name, 12, anchor="ma")
    for y in y_ticks:
        draw.line([to_canvas(x_ticks[0], y), to_canvas(x_ticks[-1], y)], fill=_GRID, width=_SCALE)
        at = to_canvas(x_ticks[0], y)
        _text(draw, (at[0] / _SCALE - 8, at[1] / _SCALE), f"{y:.4g}", 12, anchor="rm")
    corner, right = to_canvas(x_ticks[0], bottom), to_canvas(x_ticks[-1], bottom)
    draw.line([to_canvas(x_ticks[0], y_ticks[-1]), corner, right], fill=_INK, width=_SCALE)


def _legend_corner(curves: Sequence[Curve], to_canvas: ToCanvas) -> tuple[float, float]:
    """Left and upper end of the legend: in the corner of the plot with the fewest lines behind it."""
    width, height = _LEGEND, 20 * len(curves)
    points = []  # close to each other along the curves
    for curve in curves:
        x = (curve.x[1:] + curve.x[:-1]) / 2 if len(curve.x) > len(curve.y) else curve.x
        fine = np.linspace(float(x[0]), float(x[-1]), 400)
        points += [
            to_canvas(float(a), float(b)) for a, b in zip(fine, np.interp(fine, x, curve.y), strict=True)
        ]
    at = np.array(points) / _SCALE

    def behind(corner: tuple[float, float]) -> int:
        low, high = np.array(corner) - 6, np.array(corner) + np.array([width + 6, height + 6])
        return int(((at >= low) & (at <= high)).all(1).sum())

    ends = _WIDTH - _RIGHT - width, _HEIGHT - _BOTTOM - height - 6
    corners = [(ends[0], _TOP + 4), (ends[0], ends[1]), (_LEFT + 14, _TOP + 4), (_LEFT + 14, ends[1])]
    return min(corners, key=behind)  # of equal ones the first


def _draw_curve(
    draw: ImageDraw.ImageDraw, to_canvas: ToCanvas, curve: Curve, colour: Colour, bottom: float
) -> None:
    if len(curve.x) == len(curve.y):
        points = [to_canvas(float(x), float(y)) for x, y in zip(curve.x, curve.y, strict=True)]
        draw.line(points, fill=colour, width=2 * _SCALE, joint="curve")
        return
    outline = []
    for low, high, y in zip(curve.x[:-1], curve.x[1:], curve.y, strict=True):
        outline += [to_canvas(float(low), float(y)), to_canvas(float(high), float(y))]
    ends = [to_canvas(float(x), bottom) for x in (curve.x[0], curve.x[-1])]
    draw.line([ends[0], *outline, ends[1]], fill=colour, width=3)


def _text(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, size: int, anchor: str = "la"
) -> None:
    font = ImageFont.load_default(size * _SCALE)
    draw.text((at[0] * _SCALE, at[1] * _SCALE), text, fill=_INK, font=font, anchor=anchor)
