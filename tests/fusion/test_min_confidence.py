"""How confident a pixel must be is known to the weights: depth maps record it, users override it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.depthmap import DepthMap
from gbinet.errors import WeightsError
from gbinet.formats.depth_files import read_depth_map, write_depth
from gbinet.fusion.fuse import MIN_CONFIDENCE, FusionConfig, fuse_views
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.model.weights import PUBLISHED_CONFIDENCE, save
from gbinet.provenance import maker
from gbinet.scene import Scene

shares = st.floats(0, 1)


@given(shares, shares)
def test_what_the_user_says_comes_first_then_the_weights(given: float, stated: float) -> None:
    maker = {"min_confidence": stated}
    assert FusionConfig(min_confidence=given).confidence_for(maker) == given
    assert FusionConfig().confidence_for(maker) == stated


@given(st.none() | st.text() | st.floats(1.01) | st.just(float("nan")) | st.floats(max_value=-0.01))
def test_what_is_not_a_share_is_not_believed(stated: Any) -> None:
    assert FusionConfig().confidence_for({"min_confidence": stated}) == MIN_CONFIDENCE
    assert FusionConfig().confidence_for(None) == MIN_CONFIDENCE


def test_the_bundled_weights_say_theirs() -> None:
    model = GBiNet.from_pretrained()
    assert model.min_confidence == maker(model).to_dict()["min_confidence"] == 0.1


def test_weights_keep_theirs_and_published_ones_have_the_papers(tmp_path: Path) -> None:
    model = GBiNet(GBiNetConfig())
    torch.save(model.state_dict(), tmp_path / "published.ckpt")
    assert GBiNet.from_pretrained(tmp_path / "published.ckpt").min_confidence == PUBLISHED_CONFIDENCE
    assert GBiNet.from_pretrained(save(model, tmp_path / "a.safetensors")).min_confidence is None
    model.min_confidence = 0.25
    assert GBiNet.from_pretrained(save(model, tmp_path / "b.safetensors")).min_confidence == 0.25
    model.min_confidence = 1.5
    with pytest.raises(WeightsError, match="min_confidence"):
        GBiNet.from_pretrained(save(model, tmp_path / "c.safetensors"))


def test_fusion_finds_it_in_depth_maps(tmp_path: Path, plane_scene: tuple[Scene, list[DepthMap]]) -> None:
    scene, maps = plane_scene

    class Written:
        def __init__(self, stated: float | None) -> None:
            self.made_by = {"program": "gbinet", "min_confidence": stated}

        def load(self, index: int) -> DepthMap:
            path = tmp_path / f"{index}.npz"
            half = torch.full_like(maps[index].depth, 0.5)
            write_depth(path, maps[index].depth, half, made_by=self.made_by)
            return read_depth_map(path, scene.views[index].camera)

    def confident(stated: float | None, **settings: float) -> int:
        config = FusionConfig(blank_confidence=0.0, keep_burnt_out=True, **settings)  # type: ignore[arg-type]
        return sum(view.confident for view in fuse_views(scene, Written(stated), config))

    assert confident(None) == confident(0.5) > 0
    assert confident(0.6) == 0
    assert confident(0.6, min_confidence=0.5) > 0
