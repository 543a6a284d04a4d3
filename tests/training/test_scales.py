"""Networks with other numbers of scales and other widths: trained and run, with kernels and without."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plane_scenes import PlaneSource

from gbinet import ops
from gbinet.errors import InputError
from gbinet.inference import tiles
from gbinet.inference.prepare import is_packed, prepare
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet, SearchResult
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig
from gbinet.training.updates import Step, update

sys.path.insert(0, str(Path(__file__).parents[1]))
from kernel_fixtures import kernel_device  # noqa: F401  # a fixture

THREE = GBiNetConfig(
    groups=(8, 4, 2),
    encoder_width=(16, 16, 8),
    regulariser_width=(4, 2, 2),
    scale_of_stage=(0, 1, 2),
    stages=3,
    first_bins=8,
    smoothing=((1, 6), (1, 6), (2, 24)),
    choice_widths=(8, 4),
    readout="smooth",
)
FIVE = GBiNetConfig(
    groups=(8, 8, 8, 8, 4), encoder_width=4, regulariser_width=2, scale_of_stage=(0, 1, 2, 3, 4)
)


def trained(config: GBiNetConfig, batch: Batch, device: torch.device) -> tuple[GBiNet, list[torch.Tensor]]:
    """A new network after two steps, and what was measured in each."""
    torch.manual_seed(0)
    model = GBiNet(config).to(device).train()
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    step = Step(TrainConfig(network=config, batch_size=1, precision="float32"), config.stages)
    measures = []
    for _ in range(2):
        optimiser.zero_grad()
        measures.append(update("shared-encoder", model, batch, step, lambda: optimiser.step()))
    return model, measures


@torch.inference_mode()
def search(model: GBiNet, batch: Batch) -> SearchResult:
    result: SearchResult = model(batch.images, batch.cameras, batch.depth_range)
    return result


@pytest.fixture
def batch(kernel_device: torch.device) -> Batch:  # noqa: F811
    return PlaneSource(8, 16, 2).batch(0, 1).to(kernel_device)


@pytest.fixture
def plain(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> tuple[GBiNet, list[torch.Tensor]]:
    """`trained` without kernels, which are switched on afterwards."""
    monkeypatch.setenv("GBINET_KERNELS", "plain")
    result = trained(THREE, batch, batch.images.device)
    monkeypatch.setattr(ops, "usable", lambda *tensors: True)  # the interpreter takes CPU tensors
    return result


def test_three_scales_train_and_run_with_kernels_as_without(
    batch: Batch, plain: tuple[GBiNet, list[torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, measures = plain
    assert all(bool(torch.isfinite(m).all()) for m in measures)
    with monkeypatch.context() as patch:
        patch.setattr(ops, "usable", lambda *tensors: False)
        expected = search(model.eval(), batch)
    ready = prepare(model, batch.images.device, torch.float32)
    assert is_packed(ready) and len(ready.encoder.channels) == 3
    result = search(ready, batch)
    assert ((result.depth - expected.depth).abs() < 0.1).float().mean() > 0.97
    assert ((result.confidence - expected.confidence).abs() < 1e-3).float().mean() > 0.97


@pytest.mark.slow
def test_three_scales_learn_the_same_with_kernels(
    batch: Batch, plain: tuple[GBiNet, list[torch.Tensor]]
) -> None:
    model, measures = plain
    fast, fast_measures = trained(THREE, batch, batch.images.device)
    for a, b in zip(fast_measures, measures, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    for (name, a), b in zip(fast.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("config", [THREE, FIVE], ids=["three", "five"])
def test_tiles_follow_the_scales(config: GBiNetConfig) -> None:
    torch.manual_seed(0)
    model = prepare(GBiNet(config), "cpu")
    sample = PlaneSource(136, 264, 2).sample(0)
    cameras = [sample.cameras[0, v] for v in range(2)]
    with torch.inference_mode():
        whole, cut = (
            [tiles.encode(model, image, tile) for image in sample.images[0]] for tile in (None, 128)
        )
        assert [f.shape for f in whole[0]] == [f.shape for f in cut[0]]
        depth, _ = tiles.search(model, whole, cameras, sample.depth_range[0], None)
        pieces, _ = tiles.search(model, whole, cameras, sample.depth_range[0], 128)
    assert depth.shape == pieces.shape == (136, 264)
    assert ((depth - pieces).abs() < 1e-2).float().mean() > 0.9


def test_scales_and_channels_follow_from_the_configuration() -> None:
    assert GBiNetConfig().scales == (8, 4, 2, 1) and GBiNetConfig().channels == (64, 32, 16, 8)
    assert THREE.scales == (4, 2, 1) and THREE.scale_of(1) == 4 and THREE.scale_of(9) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": ()},
        {"groups": (1,) * 9},
        {"encoder_width": (8, 8)},
        {"scale_of_stage": (0, 3)},
        {"smoothing": ()},
    ],
)
def test_scales_that_do_not_fit_together_are_refused(changes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(InputError):
        replace(THREE, **changes)  # type: ignore[arg-type]
