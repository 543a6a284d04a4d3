"""Confidence as the chance that no stage was more than a bin off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gbinet.errors import InputError
from gbinet.inference import tiles
from gbinet.inference.prepare import prepare
from gbinet.model import search
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet

NEARBY = GBiNetConfig(confidence="nearby", stages=7, first_bins=8)


def network() -> GBiNet:
    torch.manual_seed(1)
    return GBiNet(NEARBY).eval()


def test_it_is_the_product_over_the_stages(make_tiny_scene: Callable[..., Any]) -> None:
    scene = make_tiny_scene(height=40, width=56)
    limits = torch.tensor([[scene.depth_range.near, scene.depth_range.far]])
    model = network()
    with torch.inference_mode():
        result = model(scene.images[None], scene.cameras[None], limits, keep_stages=True)
    expected = torch.ones(1, 1, 40, 56)
    for stage in result.stages:
        expected *= F.interpolate(search.nearby(stage.probabilities), size=(40, 56), mode="nearest")
    torch.testing.assert_close(result.confidence, expected[:, 0])
    assert float(result.confidence.max()) <= 1 and float(result.confidence.min()) > 0


def test_a_network_made_ready_and_tiles_agree() -> None:
    from test_first_bins import row_of_cameras  # type: ignore[import-not-found]  # beside this file

    model = network()
    cameras, limits = row_of_cameras(2, 0.2, width=256, height=192), torch.tensor([[1.0, 4.0]])
    images = torch.rand(2, 3, 192, 256)
    with torch.inference_mode():
        plain = model(images[None], cameras, limits)
        ready = prepare(model, "cpu")(images[None], cameras, limits)
        features = [tiles.encode(model, image, None) for image in images]
        _, cut = tiles.search(model, features, list(cameras[0]), limits[0], 128)
    assert float((plain.confidence - ready.confidence).abs().median()) < 1e-4
    assert float((plain.confidence[0] - cut).abs().lt(1e-3).float().mean()) > 0.95


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(InputError, match="confidence"):
        replace(NEARBY, confidence="best")  # type: ignore[arg-type]
