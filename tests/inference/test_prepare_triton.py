"""A network made ready, on the kernels, finds the depth that the plain network finds."""

from dataclasses import replace

import pytest
import torch

from gbinet import ops
from gbinet.camera import Camera
from gbinet.inference.graphs import GraphedNetwork
from gbinet.inference.prepare import fold_batch_norms, is_packed, prepare
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet, SearchResult
from gbinet.model.layers import pack
from gbinet.model.search import SearchState

PLAIN = GBiNetConfig(first_bins=8, stages=2, scale_of_stage=(0, 3), readout="expectation")
REFINED = replace(
    PLAIN,
    bins=6,
    edge_cells=6,
    smoothing=((1, 6), (1, 6), (1, 6), (2, 24)),
    refiner=True,
    readout="refined",
    confidence="nearby",
)
# Everything that the published network does not have.
CHOOSING = replace(
    REFINED,
    stages=4,
    scale_of_stage=(0, 1, 1, 3),
    refiner_sides=True,
    confidence="learned",
    choice_widths=(16, 16, 8),
    choice_again=True,
    regulariser_width=(16, 8, 8, 8),
    context=True,
)


def network(config: GBiNetConfig = PLAIN) -> GBiNet:
    torch.manual_seed(1)
    model = GBiNet(config).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm3d):
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
            torch.nn.init.normal_(module.bias, std=0.1)
    for chooser in (*model.choosers, *model.again_choosers):
        torch.nn.init.normal_(chooser.output.weight, std=1.0)  # type: ignore[union-attr, arg-type]
    if model.refiner is not None:
        torch.nn.init.normal_(model.refiner.output.weight, std=0.1)  # new: one answer everywhere
    return model


def views(
    count: int, height: int, width: int, device: torch.device
) -> tuple[torch.Tensor, Camera, torch.Tensor]:
    torch.manual_seed(2)
    K = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1.0]])
    pose = torch.eye(4).repeat(count, 1, 1)
    pose[:, 0, 3] = -0.3 * torch.arange(count)
    cameras = Camera(K.repeat(count, 1, 1), pose, width, height)[None].to(device)
    images = torch.rand(1, count, 3, height, width)
    return images.to(device), cameras, torch.tensor([[2.0, 10.0]], device=device)


def agree(found: SearchResult, expected: SearchResult, share: float) -> None:
    assert found.depth.shape == expected.depth.shape and found.confidence.shape == expected.confidence.shape
    assert ((found.depth - expected.depth).abs() < 1e-3).float().mean() > share
    assert ((found.confidence - expected.confidence).abs() < 1e-3).float().mean() > share


def packed(module: torch.nn.Module) -> torch.nn.Module:
    pack(module)
    return module


def test_same_logits_at_an_odd_size(monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    plain = fold_batch_norms(GBiNet()).regularisers[3].to(kernel_device)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    volume = torch.randn(1, 4, 2, 9, 14).to(kernel_device)
    with torch.no_grad():
        expected = plain(volume)
        monkeypatch.setattr(ops, "usable", lambda *tensors: True)  # the interpreter serves CPU tensors
        result = packed(plain)(volume)
    assert result.shape == expected.shape == (1, 2, 9, 14)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_same_features(monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    plain = fold_batch_norms(GBiNet()).encoder.to(kernel_device)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    images = torch.rand(1, 3, 16, 24).to(kernel_device)
    with torch.no_grad():
        expected = plain(images)
        monkeypatch.setattr(ops, "usable", lambda *tensors: True)
        result = packed(plain)(images)
    for own, reference in zip(result, expected, strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-3, atol=1e-3 * float(reference.abs().max()))


@pytest.mark.parametrize(
    "config, dtype",
    [
        pytest.param(PLAIN, torch.float32, id="plain", marks=pytest.mark.slow),
        pytest.param(REFINED, torch.float32, id="refined", marks=pytest.mark.slow),  # "choosing" has it too
        pytest.param(CHOOSING, torch.float16, id="choosing"),  # some kernels serve half precision alone
        pytest.param(CHOOSING, torch.float32, id="choosing-exactly", marks=pytest.mark.slow),
    ],
)
def test_same_depth_and_confidence(
    config: GBiNetConfig, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device
) -> None:
    model = network(config).to(kernel_device)
    inputs = views(2, 7, 13, kernel_device)  # no multiples of 8: padded
    monkeypatch.setenv("GBINET_KERNELS", "plain")
    with torch.inference_mode():
        expected = model(*inputs)
        before = inputs[0].clone()
        monkeypatch.setattr(ops, "usable", lambda *tensors: True)  # the interpreter serves CPU tensors
        ready = prepare(model, kernel_device, dtype)
        found = ready(*inputs)
    assert is_packed(ready)
    agree(found, expected, 0.98)
    assert isinstance(found.state, SearchState) and isinstance(expected.state, SearchState)
    assert (found.state.cell == expected.state.cell).float().mean() > 0.98
    assert torch.equal(before, inputs[0])  # the caller's images are left alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_replay_the_same_numbers(kernel_device: torch.device) -> None:
    model = network().to(kernel_device)
    plain = prepare(model, kernel_device)
    recorded = GraphedNetwork(plain, 2)
    images, cameras, ends = views(3, 64, 96, kernel_device)
    with torch.inference_mode():
        for seed in range(4):  # the first is computed, the second recorded
            images = images.roll(seed, dims=-1)
            ends = ends * 1.01
            expected = plain(images, cameras, ends)
            found = recorded(images, cameras, ends)
            agree(found, expected, 0.999)
            assert isinstance(found.state, SearchState) and isinstance(expected.state, SearchState)
            assert torch.equal(found.state.cell, expected.state.cell)
            features = plain.encode(images)
            of_views = [tuple(m.unbind(1)) for m in features]
            agree(recorded.search(of_views, cameras, ends), expected, 0.999)
    assert len(recorded.graphs) == 2
    other = views(3, 72, 96, kernel_device)
    with torch.inference_mode():
        for _ in range(3):  # beyond the limit: computed
            agree(recorded(*other), plain(*other), 0.999)
    assert len(recorded.graphs) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_that_share_memory_do_not_disturb_each_other(kernel_device: torch.device) -> None:
    model = network().to(kernel_device)
    plain = prepare(model, kernel_device)
    recorded = GraphedNetwork(plain, 3)
    kinds = [(8, 64), (16, 64), (8, 72)]  # bins of stage 1, height; the first two read the same inputs
    given = {height: views(3, height, 96, kernel_device) for height in (64, 72)}
    with torch.inference_mode():
        for _ in range(4):
            found = [recorded(*given[height], first_bins=bins) for bins, height in kinds]
            for (bins, height), result in zip(kinds, found, strict=True):  # after all have been replayed
                expected = plain(*given[height], first_bins=bins)
                agree(result, expected, 0.999)
                assert isinstance(result.state, SearchState) and isinstance(expected.state, SearchState)
                assert torch.equal(result.state.cell, expected.state.cell)
    assert len(recorded.graphs) == 3
