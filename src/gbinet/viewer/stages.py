"""The search as one picture: the result of every stage for one view, and what the filters kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gbinet.formats.image import write_image
from gbinet.viewer.colour import UNKNOWN, colourise

Array = NDArray[Any]
Pixels = NDArray[np.uint8]

_WIDTH = 1840  # of the sheet
_MARGIN, _GAP, _LINE = 20, 8, 22
_INK, _FAINT, _PAPER = (40, 44, 52), (110, 116, 126), (255, 255, 255)
_LEGEND = (
    "depth: dark is far, light is near, grey is unanswered or dropped by a filter   ·   "
    "confidence: dark red is 0, pale green is 1   ·   "
    "valid: white where the true depth was in the bins of all stages so far, black elsewhere"
)
_HEAD = 62  # height of title and legend


@dataclass(frozen=True)
class ViewStages:
    """The contents of one sheet; all maps are [H, W]."""

    name: str
    photo: Pixels  # [H, W, 3]
    depths: Mapping[int, Array]  # stage -> depth
    confidences: Mapping[int, Array]  # stage -> confidence of the stages so far
    valid: Mapping[int, Array]  # stage -> bool: the true depth can still be found; empty without truth
    final: Array  # depth that was written
    confidence: Array  # that was written
    min_confidence: float  # that the photometric filter asks for
    consistent: Array  # bool: other views confirm the depth
    truth: Array | None = None  # 0 = unknown
    clouds: Mapping[str, Pixels] = field(default_factory=dict)  # caption -> picture of the fused cloud


def write_sheet(path: Path, view: ViewStages) -> Path:
    """(a) depth, valid pixels and confidence by stage; (b) photo, final, filtered, true depth and cloud."""
    low, high = _scale(view)

    def depth(values: Array, keep: Array | None = None) -> Pixels:
        known = (values > 0) if keep is None else (values > 0) & keep
        inverse = 1 / np.maximum(values, 1e-30)
        return colourise(inverse, known, "depth", low, high)

    def confidence(values: Array) -> Pixels:
        return colourise(values, np.ones(values.shape, dtype=bool), "confidence", 0, 1)

    rows: list[list[tuple[str, Pixels]]] = []
    rows.append([(f"stage {k}: depth", depth(v)) for k, v in view.depths.items()])
    if view.valid:
        known = np.asarray(view.truth) > 0 if view.truth is not None else np.ones_like(view.final, dtype=bool)
        total = max(int(known.sum()), 1)
        rows.append([(f"valid {100 * v.sum() / total:.1f} %", _mask(v, known)) for v in view.valid.values()])
    rows.append([(f"confidence of 1 to {k}", confidence(v)) for k, v in view.confidences.items()])
    confident = view.confidence >= view.min_confidence
    last = [
        ("photo", view.photo),
        ("final depth", depth(view.final)),
        ("confidence", confidence(view.confidence)),
        (f"confidence from {view.min_confidence:g}", depth(view.final, confident)),
        ("and confirmed by others", depth(view.final, confident & view.consistent)),
    ]
    if view.truth is not None:
        last.append(("true depth", depth(view.truth)))
    rows.append(last)
    if view.clouds:
        rows.append([(f"fused cloud, {caption}", picture) for caption, picture in view.clouds.items()])
    return _draw(path, f"{view.name}: the search, stage by stage", rows)


def _scale(view: ViewStages) -> tuple[float, float]:
    """Ends of the colours in inverse depth, one pair for a sheet: of the truth, or of confident pixels."""
    known = view.truth if view.truth is not None and (view.truth > 0).any() else None
    values = view.final[view.confidence >= view.min_confidence] if known is None else known[known > 0]
    values = view.final if not len(values) else values
    values = values[values > 0]
    if not values.size:
        return 0.0, 1.0
    low, high = np.percentile(1 / values, [1, 99])
    return float(low), float(high)


def _mask(valid: Array, known: Array) -> Pixels:
    """White: valid; black: lost; grey: the truth is unknown."""
    shade = np.where(known, np.where(valid, 245, 0), UNKNOWN).astype(np.uint8)
    return np.repeat(shade[..., None], 3, axis=-1)


def _draw(path: Path, title: str, rows: Sequence[Sequence[tuple[str, Pixels]]]) -> Path:
    sizes = [_size(row) for row in rows]
    height = 2 * _MARGIN + _HEAD + sum(h + _LINE + _GAP for _, h in sizes)
    sheet = Image.new("RGB", (_WIDTH, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, _MARGIN), title, fill=_INK, font=ImageFont.load_default(20))
    draw.text((_MARGIN, _MARGIN + 32), _LEGEND, fill=_FAINT, font=ImageFont.load_default(13))
    top = _MARGIN + _HEAD
    for row, (width, tall) in zip(rows, sizes, strict=True):
        for column, (caption, picture) in enumerate(row):
            left = _MARGIN + column * (width + _GAP)
            draw.text((left, top + 3), caption, fill=_FAINT, font=ImageFont.load_default(13))
            shown = Image.fromarray(picture).resize((width, tall), Image.Resampling.BOX)
            sheet.paste(shown, (left, top + _LINE))
        top += tall + _LINE + _GAP
    return write_image(path, np.asarray(sheet))


def _size(row: Sequence[tuple[str, Pixels]]) -> tuple[int, int]:
    """Width and height of the pictures of a row: they share its width, up to four to a row."""
    count = max(len(row), 4)
    height, width = row[0][1].shape[:2]
    each = (_WIDTH - 2 * _MARGIN - (count - 1) * _GAP) // count
    return each, max(1, round(each * height / width))
