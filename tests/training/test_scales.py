"""Another number of scales, other widths at each: configuration alone. Trained and run, fast and plain."""

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
def depth_of(model: GBiNet, batch: Batch) -> SearchResult:
    result: SearchResult = model(batch.images, batch.cameras, batch.depth_range)
    return result


def test_three_scales_train_and_run_fast_and_plain(
    monkeypatch: pytest.MonkeyPatch,
    kernel_device: torch.device,  # noqa: F811
) -> None:
    batch = PlaneSource(8, 16, 2).batch(0, 1).to(kernel_device)
    monkeypatch.setenv("GBINET_KERNELS", "plain")
    plain, measures = trained(THREE, batch, kernel_device)
    assert all(bool(torch.isfinite(m).all()) for m in measures)
    answer = depth_of(plain.eval(), batch)
    monkeypatch.setattr(ops, "usable", lambda *tensors: True)  # the interpreter serves CPU tensors
    ready = prepare(plain, kernel_device, torch.float32)
    assert is_packed(ready) and len(ready.encoder.channels) == 3
    result = depth_of(ready, batch)
    assert ((result.depth - answer.depth).abs() < 0.1).float().mean() > 0.97
    assert ((result.confidence - answer.confidence).abs() < 1e-3).float().mean() > 0.97


@pytest.mark.slow
def test_three_scales_learn_the_same_by_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
    kernel_device: torch.device,  # noqa: F811
) -> None:
    batch = PlaneSource(8, 16, 2).batch(0, 1).to(kernel_device)
    monkeypatch.setenv("GBINET_KERNELS", "plain")
    plain, expected = trained(THREE, batch, kernel_device)
    monkeypatch.setattr(ops, "usable", lambda *tensors: True)
    fast, found = trained(THREE, batch, kernel_device)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    for (name, a), b in zip(fast.state_dict().items(), plain.state_dict().values(), strict=True):
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


def test_the_same_numbers_as_ever() -> None:
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
