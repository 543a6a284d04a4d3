"""What becomes of workers and readers when fusion meets files that it cannot write or read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from ball_scene import SceneMaker
from test_fuse import TrueDepth

from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, GBiNetError
from gbinet.fusion.fuse import FusedView, FusionConfig, begin_views, fuse
from gbinet.fusion.loading import Loader


def test_who_makes_the_views_is_dismissed_when_writing_fails(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    closed = []

    def views() -> Generator[Callable[[], FusedView], None, None]:
        try:
            yield from begin_views(scene, TrueDepth(scene), FusionConfig())
        finally:
            closed.append(True)

    def full(view: FusedView) -> None:
        raise GBiNetError("the disk is full")

    kept = views()  # held here, so that nothing but `fuse` can close it
    with pytest.raises(GBiNetError, match="the disk is full"):
        fuse(scene, TrueDepth(scene), tmp_path / "cloud.ply", on_view=full, views=kept)
    assert closed


class Damaged(TrueDepth):
    def load(self, index: int) -> DepthMap | None:
        if index in (1, 2):
            raise FormatError(f"{index}.npz", "cut short")
        return super().load(index)


def test_a_map_read_ahead_is_refused_only_while_others_may_read_it(ball_scene: SceneMaker) -> None:
    scene = ball_scene()
    lost: set[int] = set()

    def refuse(view: int, problem: str) -> None:
        if view not in lost:
            raise GBiNetError(f"view {view}")

    with Loader(scene, Damaged(scene), FusionConfig(), torch.device("cpu"), refuse) as loader:
        loader.read_ahead([1, 2])
        with pytest.raises(GBiNetError, match="view 1"):
            loader.get(1)
        loader._coming[2].result()  # it was read before anybody knew that it is lost
        lost |= {1, 2}
        assert loader.get(1) is None and loader.get(2) is None
        assert loader.get(0) is not None


def test_one_process_says_what_it_leaves_out(
    ball_scene: SceneMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = ball_scene()
    with caplog.at_level(logging.WARNING):
        result = fuse(scene, Damaged(scene), tmp_path / "cloud.ply", FusionConfig(min_views=1))
    assert result.views == len(scene.views) - 2
    left_out = [text for text in caplog.messages if text.endswith("the view is left out")]
    assert len(left_out) == 2
