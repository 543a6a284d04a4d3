"""Calibrated confidence: a map in the header of the weights that changes nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gbinet.camera import Camera
from gbinet.errors import InputError, WeightsError
from gbinet.inference.prepare import prepare
from gbinet.model.calibration import Calibration
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.model.weights import set_confidence
from gbinet.scene import DepthRange

SMALL = GBiNetConfig(encoder_width=4, regulariser_width=2, stages=4, confidence="nearby")
MAP = Calibration([0.0, 0.1, 0.6, 1.0], [0.05, 0.4, 0.4, 0.9])


def small_views() -> tuple[torch.Tensor, Camera, DepthRange]:
    """Noise seen by three cameras: whatever a network says about it is as good as anything."""
    K = torch.tensor([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]]).repeat(3, 1, 1)
    pose = torch.eye(4).repeat(3, 1, 1)
    pose[1:, 0, 3] = torch.tensor([-0.2, 0.2])
    images = torch.rand(3, 3, 48, 64, generator=torch.Generator().manual_seed(1))
    return images, Camera(K, pose, 64, 48), DepthRange(1.0, 4.0)


@st.composite
def maps(draw: st.DrawFn) -> Calibration:
    inner = draw(st.lists(st.integers(1, 999), unique=True, max_size=10))
    confidences = [0.0, *(k / 1000 for k in sorted(inner)), 1.0]
    size = len(confidences)
    return Calibration(confidences, sorted(draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))))


@given(maps(), st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_it_is_linear_between_its_knots_and_never_falls(map_: Calibration, values: list[float]) -> None:
    x, (confidences, shares) = np.sort(np.float32(values)), map_.to_dict().values()
    found = map_(torch.from_numpy(x)[None, None])
    assert found.shape == (1, 1, len(values)) and found.dtype == torch.float32
    np.testing.assert_allclose(found[0, 0].numpy(), np.interp(x, confidences, shares), atol=1e-5)
    assert bool((found.diff() >= -1e-6).all())


@pytest.mark.parametrize(
    ("confidences", "shares"),
    [
        ([0.0], [0.5]),
        ([0.0, 1.0], [0.5]),
        ([0.1, 1.0], [0.0, 1.0]),
        ([0.0, 0.5, 0.5, 1.0], [0.0, 0.1, 0.2, 1.0]),
        ([0.0, 1.0], [0.9, 0.1]),
        ([0.0, 1.0], [0.0, float("nan")]),
        ([0.0, 1.0], [0.0, 1.5]),
        ([k / 100 for k in range(101)], [0.0] * 101),
    ],
)
def test_what_is_not_a_calibration_is_refused(confidences: list[float], shares: list[float]) -> None:
    with pytest.raises(InputError, match="calibration"):
        Calibration(confidences, shares)


# ---- in the network ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network() -> GBiNet:
    torch.manual_seed(0)
    return GBiNet(SMALL).eval()


@pytest.fixture
def calibrated(network: GBiNet) -> GBiNet:
    other = GBiNet(SMALL).eval()
    other.load_state_dict(network.state_dict())  # a map is not among the tensors
    other.calibration = MAP
    return other


def test_only_the_finished_confidence_is_mapped(network: GBiNet, calibrated: GBiNet) -> None:
    images, cameras, limits = small_views()
    plain, mapped = (model.predict(images, cameras, limits) for model in (network, calibrated))
    assert plain.confidence is not None and mapped.confidence is not None
    assert torch.equal(plain.depth, mapped.depth)
    assert torch.equal(mapped.confidence, MAP(plain.confidence))
    for options in ({"stages": 3}, {"readout": "expectation"}):  # nobody knows what these are worth
        plain, mapped = (model.predict(images, cameras, limits, **options) for model in (network, calibrated))
        assert torch.equal(plain.confidence, mapped.confidence)


def test_a_search_in_two_parts_is_mapped_once(network: GBiNet, calibrated: GBiNet) -> None:
    images, cameras, limits = small_views()
    near_far = torch.tensor([[limits.near, limits.far]])
    with torch.no_grad():
        features = calibrated.encode(images[None])
        part = calibrated.search(features, cameras[None], near_far, stages=2)
        whole = calibrated.search(features, cameras[None], near_far, resume=part)
        plain = network.search(features, cameras[None], near_far)
    torch.testing.assert_close(whole.confidence, MAP(plain.confidence))


def test_a_network_made_ready_has_the_same_map_in_full_precision(calibrated: GBiNet) -> None:
    images, cameras, limits = small_views()
    ready = prepare(calibrated, "cpu")
    torch.testing.assert_close(
        ready.predict(images, cameras, limits).confidence,
        calibrated.predict(images, cameras, limits).confidence,
        atol=1e-4,
        rtol=1e-4,
    )
    half = prepare(calibrated, "cpu", torch.float16).calibration
    assert half is not None and half.to_dict() == MAP.to_dict()
    assert {buffer.dtype for buffer in half.buffers()} == {torch.float32}


# ---- in the file -------------------------------------------------------------------------------------------


def test_the_calibration_is_saved_in_the_header(network: GBiNet, calibrated: GBiNet, tmp_path: Path) -> None:
    with_map, without = calibrated.save(tmp_path / "a.safetensors"), network.save(tmp_path / "b.safetensors")
    loaded = GBiNet.from_pretrained(with_map)
    assert loaded.calibration is not None and loaded.calibration.to_dict() == MAP.to_dict()
    assert GBiNet.from_pretrained(without).calibration is None
    assert list(load_file(with_map)) == list(load_file(without))


def test_setting_the_calibration_of_a_file_keeps_its_tensors(network: GBiNet, tmp_path: Path) -> None:
    path = network.save(tmp_path / "half.safetensors", half=True)
    before = load_file(path)
    set_confidence(path, 0.25, MAP)
    set_confidence(path, 0.3, replace_last(MAP, 0.95))  # again: the new one replaces the old one
    after = load_file(path)
    assert all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)
    loaded = GBiNet.from_pretrained(path)
    assert loaded.config == SMALL and loaded.min_confidence == 0.3
    assert loaded.calibration is not None
    assert loaded.calibration.to_dict()["right"][-1] == pytest.approx(0.95)


def replace_last(map_: Calibration, value: float) -> Calibration:
    confidences, shares = map_.to_dict().values()
    return Calibration(confidences, [*shares[:-1], value])


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            "no JSON",
            "[]",
            "{}",
            "[" * 9999,
            '{"said": 1, "right": 2}',
            '{"said": [0, 1], "right": [0, 2]}',
        ),
        '{"said": ["a", "b"], "right": [0, 1]}',
        '{"said": [0, 1], "right": [0, 1' + "0" * 400 + "]}",
    ],
)
def test_a_broken_calibration_in_the_header_is_refused(network: GBiNet, tmp_path: Path, written: str) -> None:
    path = network.save(tmp_path / "a.safetensors")
    with safe_open(path, framework="pt") as file:
        header = file.metadata() | {"calibration": written}
    save_file(load_file(path), path, header)
    with pytest.raises(WeightsError, match="calibration"):
        GBiNet.from_pretrained(path)


def test_a_calibration_survives_json() -> None:
    assert Calibration.from_dict(json.loads(json.dumps(MAP.to_dict()))).to_dict() == MAP.to_dict()


def test_what_is_written_is_the_same_map_again() -> None:
    close = Calibration([0.0, 0.5, 0.501, 1.0], [0.0, 0.1, 0.7, 1.0])
    again = Calibration.from_dict(close.to_dict())
    values = torch.linspace(0, 1, 1001)
    assert torch.equal(again(values), close(values))
    with pytest.raises(InputError):  # nearer than float32 can tell
        Calibration([0.0, 0.5, 0.5 + 1e-12, 1.0], [0.0, 0.1, 0.7, 1.0])
