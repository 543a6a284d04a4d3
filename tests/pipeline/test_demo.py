from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gbinet.errors import GBiNetError
from gbinet.formats.depth_files import read_depth_map
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.demo import DemoConfig, render_scene, run_demo, score, true_cloud
from gbinet.scene import Scene

SMALL = DemoConfig(views=5, width=128, height=96)


class Truth:
    def __init__(self, scene: Scene) -> None:
        self.views = scene.views

    def load(self, index: int):  # type: ignore[no-untyped-def]
        assert self.views[index].depth_path is not None
        return read_depth_map(self.views[index].depth_path, self.views[index].camera)


def test_the_true_depth_scores_nearly_full_marks(tmp_path: Path) -> None:
    scene = render_scene(tmp_path / "scene", SMALL)
    assert len(scene.views) == 5 and all(view.sources and view.depth_range for view in scene.views)
    # The truth holds what two photos see; so does a cloud that one other view confirms.
    config = FusionConfig(max_relative_depth=0.02, min_views=1)
    fuse(scene, Truth(scene), tmp_path / "cloud.ply", config)
    result = score(tmp_path / "cloud.ply", scene, 0.006)
    assert result.precision[0.006] > 0.98 and result.recall[0.006] > 0.8
    assert len(true_cloud(scene)) > 10_000


@pytest.mark.parametrize("views", [2, 3])
def test_few_views_have_a_true_cloud_too(tmp_path: Path, views: int) -> None:
    """Otherwise, the demo would fail after all the work."""
    scene = render_scene(tmp_path / "scene", DemoConfig(views=views, width=64, height=48))
    assert len(true_cloud(scene)) > 500


def test_an_empty_cloud_is_reported(tmp_path: Path) -> None:
    from gbinet.fusion.fuse import empty_cloud

    scene = render_scene(tmp_path / "scene", DemoConfig(views=2, width=64, height=48))
    empty_cloud().save(tmp_path / "cloud.ply")
    with pytest.raises(GBiNetError, match="empty"):
        score(tmp_path / "cloud.ply", scene, 0.006)


@pytest.mark.slow
def test_the_bundled_weights_reconstruct_a_small_scene(tmp_path: Path) -> None:
    result = run_demo(
        tmp_path, GBiNet.from_pretrained(), DemoConfig(views=6, width=320, height=240), device="cpu"
    )
    assert torch.tensor(list(result.score.precision.values())).item() > 0.9
    assert torch.tensor(list(result.score.recall.values())).item() > 0.5
    assert "median error" in result.reconstruction.report.read_text()
