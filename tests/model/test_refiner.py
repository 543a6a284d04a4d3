"""The refiner: where it starts, what it may move, and that every way to run it gives the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.inference.prepare import prepare
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.model.refiner import Refiner, make_candidates
from gbinet.ops.smooth import smoothed

SMOOTH = GBiNetConfig(
    bins=6,
    first_bins=8,
    stages=3,
    scale_of_stage=(0, 2, 3),
    smoothing=((1, 6), (1, 6), (2, 6), (3, 24)),
    readout="smooth",
)


REFINED = replace(SMOOTH, refiner=True, readout="refined")


def network(config: GBiNetConfig = REFINED) -> GBiNet:
    torch.manual_seed(0)
    model = GBiNet(config).eval()
    for module in model.modules():  # logits that differ, so that there is something to choose
        if isinstance(module, torch.nn.Conv3d) and module.out_channels == 1:
            module.weight.data *= 30
    return model


def views(height: int = 36, width: int = 52) -> tuple[torch.Tensor, Camera, torch.Tensor]:
    torch.manual_seed(1)
    K = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1.0]])
    pose = torch.eye(4).repeat(2, 1, 1)
    pose[1, 0, 3] = -0.3
    return (
        torch.rand(1, 2, 3, height, width),
        Camera(K.repeat(2, 1, 1), pose, width, height)[None],
        torch.tensor([[2.0, 10.0]]),
    )


def test_a_new_refiner_takes_the_mean_of_the_candidates() -> None:
    candidates = 3000 + 5 * torch.rand(2, 4, 8, 9)
    refined, _ = Refiner(8)(candidates, torch.rand(2, 2, 8, 9), torch.randn(2, 8, 8, 9))
    torch.testing.assert_close(refined, candidates.mean(1), rtol=0, atol=2e-3)


def test_candidates_go_from_raw_to_smoothest() -> None:
    cells = 100 + torch.randn(1, 40, 50)
    found = make_candidates(cells, smoothed(cells, 4, 24), 4, 24)
    assert torch.equal(found[:, 0], cells) and torch.equal(found[:, 2], smoothed(cells, 4, 24))
    spread = [float(found[:, i].std()) for i in range(4)]
    assert spread == sorted(spread, reverse=True)


@torch.inference_mode()
def test_what_the_refiner_adds_moves_the_depth_by_so_many_cells() -> None:
    model, inputs = network(), views()
    assert model.refiner is not None
    before = model(*inputs)
    model.refiner.output.bias[-1] += 0.75
    after = model(*inputs)
    cells = model.config.grid.cells(3)
    moved = (after.depth - before.depth) * cells / 8  # linear depth, 8 units wide
    inside = (before.depth > 2.1) & (after.depth < 9.9)  # the range's ends clamp
    torch.testing.assert_close(moved[inside], torch.full_like(moved[inside], 0.75), rtol=0, atol=1e-3)
    assert torch.equal(after.confidence, before.confidence)


@torch.inference_mode()
def test_other_read_outs_and_coarse_stages_do_not_use_the_refiner() -> None:
    model, inputs = network(), views()
    plain = network(SMOOTH)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("refiner.")})
    assert torch.equal(model(*inputs, readout="smooth").depth, plain(*inputs).depth)
    assert torch.equal(model(*inputs, stages=2).depth, plain(*inputs, stages=2).depth)
    assert not torch.equal(model(*inputs).depth, plain(*inputs).depth)


@torch.inference_mode()
def test_a_network_made_ready_refines_as_it_did_before() -> None:
    model, inputs = network(), views()
    assert model.refiner is not None
    torch.nn.init.normal_(model.refiner.output.weight, std=0.1)
    found, expected = prepare(model, "cpu")(*inputs), model(*inputs)
    assert ((found.depth - expected.depth).abs() < 1e-3).float().mean() > 0.995


def test_weights_with_a_refiner_come_back_as_they_were(tmp_path: Path) -> None:
    model = network()
    back = GBiNet.from_pretrained(model.save(tmp_path / "w.safetensors"))
    assert back.config == model.config
    assert all(torch.equal(v, back.state_dict()[k]) for k, v in model.state_dict().items())


def test_a_refiner_needs_smoothing_at_full_size() -> None:
    with pytest.raises(InputError, match="smoothing at full size"):
        GBiNetConfig(refiner=True)
    with pytest.raises(InputError, match="network with a refiner"):
        GBiNetConfig(readout="refined")


def test_a_refiner_with_sides_can_take_either_side_of_an_edge() -> None:
    smooth = torch.full((1, 8, 10), 100.0)
    smooth[..., 5:] = 400.0
    candidates = make_candidates(smooth, smooth, 2, 24, sides=True)
    assert candidates.shape[1] == 6
    refiner = Refiner(8, sides=True)
    for side, expected in ((4, 100.0), (5, 400.0)):  # the nearest and the farthest within 2 px
        with torch.no_grad():
            refiner.output.bias.zero_()
            refiner.output.bias[side] = 50.0
        refined, _ = refiner(candidates, torch.rand(1, 2, 8, 10), torch.randn(1, 8, 8, 10))
        torch.testing.assert_close(refined[..., 3:7], torch.full((1, 8, 4), expected))


@torch.inference_mode()
def test_a_learned_confidence_is_what_the_refiner_says() -> None:
    config = replace(network().config, confidence="learned", readout="refined")
    model, inputs = GBiNet(config).eval(), views()
    assert model.refiner is not None
    model.refiner.output.bias[-1] = 2.0  # a new one has no weights here
    result = model(*inputs)
    expected = torch.tensor(2.0).sigmoid().expand_as(result.confidence)
    torch.testing.assert_close(result.confidence, expected)
    with pytest.raises(InputError, match="refiner"):
        replace(config, refiner=False, readout="smooth")
