"""Plots: round ticks, every curve, and a legend that covers as little as it can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gbinet.evaluation.plots import COLOURS, Curve, plot, ticks


@pytest.mark.parametrize("largest", [0.013, 0.4, 1.0, 3.0, 97.0, 1234.0])
def test_ticks_are_few_and_reach_the_end(largest: float) -> None:
    for whole in (False, True):
        found = ticks(largest, whole)
        assert found[0] == 0 and found[-1] >= largest * (1 - 1e-9) and 2 <= len(found) <= 8
        assert not whole or all(t == round(t) for t in found)


def legend_side(path: Path) -> tuple[bool, bool]:
    """Whether the coloured squares of the legend lie in the left half and in the upper half of a picture."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    alike = np.abs(pixels - np.array(COLOURS[0])).max(2) < 12
    windows = np.lib.stride_tricks.sliding_window_view(alike, (8, 8))
    row, column = np.argwhere(windows.all((2, 3)))[0]  # lines are thinner than a square
    return bool(column < pixels.shape[1] / 2), bool(row < pixels.shape[0] / 2)


@pytest.mark.parametrize(
    ("shape", "left", "upper"),
    [
        (lambda x: 1 - x, False, True),  # falls: upper right
        (lambda x: np.minimum(4 * x, 1), False, False),  # rises at once: lower right
        (lambda x: np.where(x > 0.7, (1 + np.cos(40 * x)) / 2, 0), True, True),  # up and down at the right
    ],
)
def test_the_legend_stands_where_no_curve_runs(tmp_path: Path, shape, left: bool, upper: bool) -> None:  # type: ignore[no-untyped-def]
    x = np.linspace(0, 1, 30)
    curves = [Curve(f"curve {k}", x, 0.95 * shape(x) + 0.02 * k) for k in range(2)]
    path = plot(tmp_path / "p.png", curves, title="t", x_label="x", y_label="y", top=1.0)
    assert legend_side(path) == (left, upper)


@pytest.mark.parametrize("count", [1, 4, 5, 2 * len(COLOURS)])
def test_every_curve_is_drawn_and_has_a_name(tmp_path: Path, count: int) -> None:
    """Also those beyond the number of colours; many names stand beside the plot and not over it."""
    x = np.array([0.0, 1.0])
    heights = 60 + 40 * (np.arange(count) + 1) / (count + 1)
    curves = [Curve(f"curve {k}", x, np.full(2, height)) for k, height in enumerate(heights)]
    names, how = ("near", "far"), {"title": "t", "x_label": "x", "y_label": "y"}
    path = plot(tmp_path / "p.png", curves, **how, bottom=60, top=100, x_names=names)  # type: ignore[arg-type]
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    middle = pixels[46:380, 300]  # a column between the lines of the grid, from the top to the axis
    drawn = middle.min(1) < 180  # the grid and the paper are lighter
    starts = np.flatnonzero(drawn[1:] & ~drawn[:-1])
    assert len(starts) >= count  # the axis itself may be one more
    assert (pixels.shape[1] > 720) == (count > 4)
