"""The published network's numbers, and the project's own that hold them without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from formula_network import FILE, answer, formula_input, formula_network
from safetensors.torch import load_file
from torch import Tensor

from gbinet.camera import Camera
from gbinet.model import search
from gbinet.model.gbinet import Features, GBiNet
from gbinet.model.geometry import sources_from_reference
from gbinet.model.search import SearchState


def logits_of(model: GBiNet, features: Features, cameras: Camera, stage: int, hypotheses: Tensor) -> Tensor:
    """What stage `stage` answers to given hypotheses [B, D, h, w]."""
    scale = model.config.scale_index(stage)
    weight, transforms = model.view_weights[scale], sources_from_reference(cameras)
    volume = weight.cost_volume(features[scale], transforms, hypotheses, model.config.scales[scale])
    logits: Tensor = model.regularisers[scale](volume)
    return logits


@pytest.fixture(scope="module")
def published(shared: Path) -> tuple[GBiNet, dict[str, Tensor], Camera]:
    recorded = load_file(shared / "parity" / "dev_io.safetensors")
    pose = recorded["cam_from_world"]
    height, width = recorded["images"].shape[-2:]
    cameras = Camera(recorded["intrinsics"].expand(len(pose), 3, 3), pose, width, height)[None]
    return GBiNet.from_pretrained(shared / "parity" / "dev_official.ckpt"), recorded, cameras


@torch.inference_mode()
def test_published_logits_of_every_stage(published: tuple[GBiNet, dict[str, Tensor], Camera]) -> None:
    model, recorded, cameras = published
    features = model.encode(recorded["images"][None])
    for stage in range(1, 9):
        found = logits_of(model, features, cameras, stage, recorded[f"stage{stage}.hypotheses"][None])
        assert (found[0] - recorded[f"stage{stage}.logits"]).abs().max() < 2e-4, f"stage {stage}"


@torch.inference_mode()
def test_published_search(published: tuple[GBiNet, dict[str, Tensor], Camera]) -> None:
    model, recorded, cameras = published
    result = model(recorded["images"][None], cameras, recorded["depth_range"][None], keep_stages=True)
    near, far = recorded["depth_range"].tolist()
    for number, stage in enumerate(result.stages, start=1):
        found = search.depth(stage.next_state)[0]
        bin_width = (far - near) / stage.next_state.grid.cells(number)
        equal = (found - recorded[f"stage{number}.depth"]).abs() < 0.01 * bin_width
        assert equal.float().mean() >= 0.995, f"stage {number}"
    assert ((result.depth[0] - recorded["depth"]).abs() < 1e-4 * (far - near)).float().mean() >= 0.995
    # A flipped arg-max changes the confidence of that pixel by more than rounding.
    assert ((result.confidence[0] - recorded["confidence"]).abs() < 1e-3).float().mean() >= 0.995


@torch.inference_mode()
def test_our_own_logits_of_every_stage() -> None:
    recorded, model = load_file(FILE), formula_network()
    images, cameras, depth_range = formula_input()
    features = model.encode(images)
    spread = []
    for stage in range(1, 9):
        cell = recorded[f"stage{stage}.cell"].int()[None]
        state = SearchState(model.config.grid, depth_range, stage - 1, cell)
        found = logits_of(model, features, cameras, stage, search.hypotheses(state))[0]
        expected = recorded[f"stage{stage}.logits"]
        assert (found - expected).abs().max() < 2e-4, f"stage {stage}"
        spread.append(float(expected.std()))
    assert min(spread) > 0.05  # the fixture tests something


def test_our_own_search() -> None:
    recorded = load_file(FILE)
    result = answer(formula_network())
    assert ((result.depth[0] - recorded["depth"]).abs() < 1e-4).float().mean() >= 0.995
    assert ((result.confidence[0] - recorded["confidence"]).abs() < 1e-3).float().mean() >= 0.995
    assert len(recorded["depth"].unique()) > 50


def test_the_fixture_stays_small() -> None:
    assert FILE.stat().st_size < 200_000
