"""Laws of the dense searches, and the networks around them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_scenes import PlaneSource
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gbinet.camera import Camera
from gbinet.errors import InputError, WeightsError
from gbinet.inference import tiles
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet
from gbinet_research.dense import PRESETS, DenseConfig, DenseNet, DenseSearch

RANGE = torch.tensor([[425.0, 935.0], [1.0, 3.0]])


def one_hot(choice: torch.Tensor, count: int) -> torch.Tensor:
    """Logits [B, D, h, w] of a network that is certain. choice [B, h, w]."""
    return 1e4 * torch.nn.functional.one_hot(choice, count).permute(0, 3, 1, 2).float()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("inverse", [False, True])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_a_certain_network_finds_what_it_chooses(name: str, inverse: bool, seed: int) -> None:
    """Walk down with random choices: every answer is the chosen hypothesis, and lies in window and range."""
    config = replace(PRESETS[name], inverse_depth=inverse, settling=())  # whose law is below
    search = DenseSearch(config)
    random = torch.Generator().manual_seed(seed)
    state = search.start(RANGE, 3, 4)
    size = (3, 4)
    for number in range(1, config.stages + 1):
        if number > 1:  # every stage has a scale of its own
            size = (2 * size[0], 2 * size[1])
            state = search.upsample(state, *size)
        tested = search.hypotheses(state)  # [B, D, h, w]
        low, high = search.window(state)
        near, far = (RANGE[:, k, None, None] for k in (0, 1))
        slack = 1e-5 * (far - near)
        assert (low >= near - slack).all() and (high <= far + slack).all()
        assert (tested >= low[:, None] - slack[:, None]).all()
        assert (tested <= high[:, None] + slack[:, None]).all()
        choice = torch.randint(tested.shape[1], (2, *size), generator=random)
        logits = one_hot(choice, tested.shape[1])
        probabilities = logits.softmax(1)
        chosen = tested.gather(1, choice[:, None])[:, 0]
        after = search.follow(state, logits)
        for depth in (search.depth(after), search.expected_depth(state, probabilities)):
            assert ((depth - chosen).abs() <= slack).all()
        assert torch.allclose(search.confidence(probabilities), torch.ones(()))
        assert after.stage == number
        state = after


def test_soft_argmin_is_the_mean_and_has_a_gradient() -> None:
    search = DenseSearch(PRESETS["dense-linear"])
    state = search.start(RANGE, 2, 2)
    logits = torch.zeros(2, 192, 2, 2, requires_grad=True)
    depth = search.expected_depth(state, logits.softmax(1))
    assert torch.allclose(depth, RANGE.mean(1)[:, None, None].expand_as(depth))
    depth.sum().backward()
    assert logits.grad is not None
    assert (logits.grad[:, 0] < 0).all() and (logits.grad[:, -1] > 0).all()
    assert not search.depth(search.follow(state, logits)).requires_grad


def test_answers_settle_among_those_on_their_side_of_an_edge() -> None:
    """Two flat surfaces and one answer off: it goes to its neighbours', and the edge stays."""
    config = PRESETS["coarse-to-fine-helped"]
    plain, settled = (DenseSearch(c) for c in (replace(config, settling=()), config))
    choice = torch.full((1, 5, 8), 10)
    choice[..., 4:] = 30
    choice[0, 2, 1] = 11
    logits = one_hot(choice, 48)
    state = settled.start(RANGE[:1], 5, 8)
    before, after = (s.follow(state, logits).fractional_cell for s in (plain, settled))
    assert before is not None and after is not None
    step = 1 / 47
    assert torch.equal(after[..., 4:], before[..., 4:])
    jitter = (after[0, 2, 1] - before[0, 0, 0]) / step
    assert 0 < jitter < 0.7  # it was 1
    assert ((after[..., :4] - before[0, 0, 0]).abs() <= step).all()
    with pytest.raises(InputError, match="two numbers per stage"):
        replace(config, settling=((1, 0.1),))


def test_half_precision_does_not_reach_the_answer() -> None:
    """In training, states are made under autocast; the answer must still be float32's."""
    search = DenseSearch(PRESETS["dense-linear"])
    state = search.start(RANGE, 4, 4)
    logits = 3 * torch.randn(2, 192, 4, 4, generator=torch.Generator().manual_seed(0))
    plain = search.depth(search.follow(state, logits))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(search.depth(search.follow(state, logits)), plain)


def test_coarse_to_fine_has_the_published_steps() -> None:
    """48, 32, 8 hypotheses; windows of 192, 64 and 8 of MVSNet's 192 steps; moved to lie in the range."""
    search = DenseSearch(PRESETS["coarse-to-fine"])
    state = search.start(RANGE[:1], 1, 2)
    widths = []
    for _ in range(3):
        tested = search.hypotheses(state)
        widths.append(float(tested[0, -1, 0, 0] - tested[0, 0, 0, 0]))
        low = one_hot(torch.zeros(1, 1, 2, dtype=torch.long), tested.shape[1])  # always the nearest
        state = search.follow(state, low)
        assert torch.allclose(search.depth(state), torch.tensor(425.0), atol=1e-3)
    assert widths == pytest.approx([510.0, 510 / 3, 510 / 24], rel=1e-4)


def test_confidence_counts_two_hypotheses_on_each_side() -> None:
    search = DenseSearch(PRESETS["dense-linear"])
    probabilities = torch.zeros(1, 192, 1, 1)
    probabilities[0, 100:104] = 0.15
    probabilities[0, [90, 113]] = 0.2  # symmetric, so that the answer stays between 101 and 102
    assert float(search.confidence(probabilities)) == pytest.approx(0.6)


# ---- networks ----------------------------------------------------------------------------------------------


def network(name: str) -> DenseNet:
    torch.manual_seed(0)
    return DenseNet(PRESETS[name]).eval()


def views(height: int = 36, width: int = 52) -> tuple[torch.Tensor, Camera, torch.Tensor]:
    images = torch.rand(1, 2, 3, height, width, generator=torch.Generator().manual_seed(0))
    pose = torch.eye(4).repeat(1, 2, 1, 1)
    pose[:, 1, 0, 3] = 30
    K = torch.tensor([[60.0, 0, width / 2], [0, 60.0, height / 2], [0, 0, 1]]).repeat(1, 2, 1, 1)
    return images, Camera(K, pose, width, height), RANGE[:1]


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_networks_run_and_come_back_from_their_files(name: str, tmp_path: Path) -> None:
    model = network(name)
    result = model(*views(), keep_stages=True)
    path = model.save(tmp_path / "w.safetensors")
    again = DenseNet.from_pretrained(path)
    assert again.config == model.config
    assert result.depth.shape == result.confidence.shape == (1, 36, 52)
    assert ((result.depth >= 425) & (result.depth <= 935)).all()
    assert ((result.confidence > 0) & (result.confidence <= 1)).all()
    assert [s.logits.shape[1] for s in result.stages] == list(PRESETS[name].hypotheses)
    assert torch.equal(again(*views()).depth, result.depth)
    with pytest.raises(InputError, match="at most"):
        model(*views(), stages=9)
    with pytest.raises(WeightsError, match="research/"):
        GBiNet.from_pretrained(path)


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_made_ready_it_gives_what_it_gave(name: str) -> None:
    model = network(name)
    plain, ready = model(*views()), prepare(model, "cpu")(*views())
    torch.testing.assert_close(ready.depth, plain.depth, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(ready.confidence, plain.confidence, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_dense_search_is_not_cut_into_tiles() -> None:
    model, (images, cameras, limits) = network("coarse-to-fine"), views(192, 192)
    features = [tiles.encode(model, image, None) for image in images[0]]
    with pytest.raises(InputError, match="tiles"):
        tiles.search(model, features, list(cameras[0]), limits[0], 64)


def test_weights_of_earlier_versions_load(tmp_path: Path) -> None:
    """As gbinet wrote them when dense searches were part of it."""
    model = network("coarse-to-fine")
    path = model.save(tmp_path / "new.safetensors")
    config = {k: v for k, v in model.config.to_dict().items() if k != "smoothing"}
    config |= {"confidence_stages": 3, "encoder": "deformable", "smooth_radii": [], "smooth_cells": []}
    with safe_open(path, framework="pt") as file:
        header = {**file.metadata(), "config": json.dumps(config)}
    old = tmp_path / "old.safetensors"
    save_file(load_file(path), old, header)
    loaded = DenseNet.from_pretrained(old)
    sample = PlaneSource().batch(0, 1)
    with torch.no_grad():
        found, expected = (m(sample.images, sample.cameras, sample.depth_range) for m in (loaded, model))
    assert torch.equal(found.depth, expected.depth) and torch.equal(found.confidence, expected.confidence)
    with pytest.raises(WeightsError, match="not the configuration of a dense search"):
        DenseNet.from_pretrained(GBiNet().save(tmp_path / "binary.safetensors"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "each stage"),
        ({"hypotheses": (1,), "windows": (1.0,), "stages": 1}, "2 hypotheses"),
        ({"hypotheses": (4,), "windows": (0.5,), "stages": 1}, "first of them 1"),
        ({"hypotheses": (4,), "windows": (1.0,), "stages": 2}, "has 1 stages"),
        ({**PRESETS["dense-linear"].to_dict(), "first_spacing": 1.0}, "not of the dense one"),
        ({**PRESETS["dense-linear"].to_dict(), "confidence": "nearby"}, "not of the dense one"),
    ],
)
def test_impossible_searches_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DenseConfig.from_dict({"strategy": "dense", **values})
