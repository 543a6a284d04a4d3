"""Sheets of the search: a picture per stage, and what became of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gbinet.viewer import stages
from gbinet.viewer.stages import ViewStages, write_sheet


@pytest.fixture
def view() -> ViewStages:
    rng = np.random.default_rng(0)
    depth = rng.uniform(1, 2, (12, 16)).astype(np.float32)
    sure = rng.uniform(0, 1, (12, 16)).astype(np.float32)
    return ViewStages(
        name="scene / view",
        photo=rng.integers(0, 255, (12, 16, 3)).astype(np.uint8),
        depths=dict.fromkeys(range(1, 9), depth),
        confidences=dict.fromkeys(range(1, 9), sure),
        valid={k: sure > k / 9 for k in range(1, 9)},
        final=depth,
        confidence=sure,
        min_confidence=0.4,
        consistent=sure > 0.7,
        truth=depth,
    )


def captured(view: ViewStages, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Caption -> picture, as they are drawn."""
    found: dict[str, np.ndarray] = {}
    draw = stages._draw

    def listen(path: Path, title: str, rows: list[list[tuple[str, np.ndarray]]]) -> Path:
        found.update(pair for row in rows for pair in row)
        return draw(path, title, rows)

    monkeypatch.setattr(stages, "_draw", listen)
    with Image.open(write_sheet(path, view)) as sheet:
        assert sheet.width == 1840
    return found


def test_filtered_pixels_are_grey_and_the_others_keep_their_colour(
    view: ViewStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = captured(view, tmp_path / "sheet.png", monkeypatch)
    whole, sure, kept = (shown[c] for c in ("final depth", "confidence from 0.4", "and confirmed by others"))
    for picture, mask in ((sure, view.confidence >= 0.4), (kept, view.consistent)):
        assert (picture[~mask] == 58).all() and (picture[mask] == whole[mask]).all()
    assert (shown["stage 3: depth"] == shown["true depth"]).all()  # one scale of colours for the sheet
    assert sum(c.startswith("valid") for c in shown) == 8
    share = 100 * view.valid[5].mean()
    white = shown[f"valid {share:.1f} %"] == 245
    assert (white.all(-1) == view.valid[5]).all()


def test_without_truth_there_is_nothing_valid_to_show(
    view: ViewStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = captured(replace(view, truth=None, valid={}), tmp_path / "sheet.png", monkeypatch)
    assert not any(c.startswith("valid") or c == "true depth" for c in shown)


def test_a_view_without_any_depth_can_be_shown(view: ViewStages, tmp_path: Path) -> None:
    nothing = np.zeros((12, 16), np.float32)
    empty = replace(view, truth=None, valid={}, final=nothing, depths={1: nothing}, confidences={1: nothing})
    assert write_sheet(tmp_path / "sheet.png", empty).is_file()
