"""`gbinet depth --stages-report`: pictures of the search for any scene."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ball_scene import SceneMaker

from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError
from gbinet.fusion.fuse import FusedView, FusionResult
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline import stages_report
from gbinet.pipeline.stages_report import write_stages_report
from gbinet.viewer.stages import ViewStages


def test_some_views_get_a_sheet_with_every_stage(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene()
    torch.manual_seed(0)
    model = GBiNet().eval()
    config = DepthConfig(max_size=64, views=3, stages=3, precision="float32")  # as the stages shown
    shown: list[ViewStages] = []
    seen: list[weakref.ref[DepthMap]] = []
    alive: list[int] = []
    monkeypatch.setattr(stages_report, "VIEWS", 2)
    write, fuse = stages_report.write_sheet, stages_report.fuse

    def write_and_look(path: Path, view: ViewStages) -> Path:
        gc.collect()
        alive.append(sum(one() is not None for one in seen))
        shown.append(view)
        return write(path, view)

    def fuse_and_look(*args: Any, on_view: Callable[[FusedView], None], **options: Any) -> FusionResult:
        def look(view: FusedView) -> None:
            seen.extend(weakref.ref(one) for one in (view.confirmed, view.depth_map))
            on_view(view)

        return fuse(*args, on_view=look, **options)

    monkeypatch.setattr(stages_report, "write_sheet", write_and_look)
    monkeypatch.setattr(stages_report, "fuse", fuse_and_look)
    estimate_depths(scene, model, tmp_path / "depth", config)
    written = write_stages_report(scene, model, tmp_path / "depth", tmp_path / "stages", config)
    assert 1 <= len(written) <= 2 and all(p.is_file() for p in written)
    assert (tmp_path / "stages" / "cloud.ply").is_file()
    assert len(seen) == 2 * len(scene.views) and not any(alive)  # memory does not grow with the views
    for view in shown:
        assert set(view.depths) == set(view.confidences) == {1, 2, 3}
        # The stages that are shown are those of the search that was written.
        torch.testing.assert_close(torch.from_numpy(view.depths[3]), torch.from_numpy(view.final))
        torch.testing.assert_close(torch.from_numpy(view.confidences[3]), torch.from_numpy(view.confidence))


def test_a_folder_without_depth_maps_is_refused(ball_scene: SceneMaker, tmp_path: Path) -> None:
    with pytest.raises(GBiNetError, match="no depth map"):
        write_stages_report(ball_scene(), GBiNet(), tmp_path, tmp_path / "stages")
