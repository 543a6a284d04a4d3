"""The masked cross-entropy and the loss of the continuous depth."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.model import search
from gbinet.model.gbinet import Stage
from gbinet.training.distributed import Processes
from gbinet.training.loss import MEASURES, readout_error, stage_loss, upsampled_mask

RANGE = torch.tensor([[425.0, 935.0]])


def make_stage(logits: torch.Tensor, bins: int = 4, inverse: bool = False) -> Stage:
    """The first stage of a search with given logits [1, D, h, w]."""
    state = search.start(search.SearchGrid(4, bins, inverse), RANGE, *logits.shape[-2:])
    return Stage(state, logits, search.descend(state, logits.argmax(1)))


def everywhere(size: int = 4) -> torch.Tensor:
    return torch.ones(1, size, size, dtype=torch.bool)


@pytest.mark.parametrize("inverse", [False, True])
def test_unknown_depths_do_not_count(inverse: bool):
    logits = torch.randn(1, 4, 4, 4, requires_grad=True)
    stage = make_stage(logits, inverse=inverse)
    loss = stage_loss(stage, torch.zeros(1, 4, 4), everywhere(), Processes(), 0.5)
    loss.loss.backward()
    assert float(loss.loss.detach()) == 0
    measures = dict(zip(MEASURES, loss.measures.tolist(), strict=True))
    assert all(value == 0 for value in measures.values())
    assert not loss.valid.any()
    assert logits.grad is not None and not logits.grad.any()


def test_only_valid_pixels_get_a_gradient_and_the_loss_is_their_mean():
    logits = torch.zeros(1, 4, 4, 4, requires_grad=True)
    depth = torch.full((1, 4, 4), 600.0)
    depth[0, 0] = 0  # unknown
    depth[0, 1] = 2000  # beyond the range
    mask = everywhere()
    mask[0, 2, 0] = False  # left the bins at a stage before
    loss = stage_loss(make_stage(logits), depth, mask, Processes())
    loss.loss.backward()
    assert float(loss.loss.detach()) == pytest.approx(math.log(4))
    assert int(loss.valid.sum()) == 7
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(1) > 0, loss.valid)
    measures = dict(zip(MEASURES, loss.measures.tolist(), strict=True))
    assert measures["valid"] == 7
    assert measures["known"] == 12


@given(st.floats(425, 934.9), st.integers(4, 8).map(lambda n: 2 * (n // 2)))
def test_perfect_logits_have_no_loss(depth: float, bins: int):
    truth = torch.full((1, 2, 2), depth)
    index, inside = search.label(search.start(search.SearchGrid(4, bins), RANGE, 2, 2), truth)
    assert bool(inside.all())
    logits = 50 * torch.nn.functional.one_hot(index, bins).permute(0, 3, 1, 2).float()
    loss = stage_loss(make_stage(logits, bins), truth, everywhere(2), Processes())
    assert float(loss.loss) < 1e-4
    assert dict(zip(MEASURES, loss.measures.tolist(), strict=True))["right"] == 4


def test_masks_are_upsampled_to_finer_scales_and_stay():
    mask = torch.tensor([[[True, False], [False, True]]])
    finer = upsampled_mask(mask, (4, 4))
    assert torch.equal(finer[0, :2, :2], torch.ones(2, 2, dtype=torch.bool))
    assert not finer[0, :2, 2:].any()
    assert torch.equal(finer[:, ::2, ::2], mask)


def test_the_continuous_loss_pulls_towards_the_truth():
    """Following its gradient brings the expected depth closer, below a bin's width."""
    truth = torch.full((1, 2, 2), 700.0)
    logits = torch.tensor([0.0, 2.0, 1.0, 0.0]).view(1, 4, 1, 1).expand(1, 4, 2, 2).clone().requires_grad_()

    def off() -> float:
        stage = make_stage(logits)
        expected = search.expected_depth(stage.state, stage.probabilities)
        return float((expected - truth).abs().max().detach())

    before = off()
    for _ in range(200):
        (gradient,) = torch.autograd.grad(readout_error(make_stage(logits), truth).mean(), logits)
        logits = (logits - 2 * gradient).detach().requires_grad_()
    assert off() < 0.2 * before
    assert off() < 5  # the bins are 127 wide


def test_the_continuous_loss_only_counts_near_the_truth():
    logits = torch.zeros(1, 4, 1, 1)
    logits[:, 0] = 5  # chooses the first bin
    far, near = torch.full((1, 1, 1), 900.0), torch.full((1, 1, 1), 600.0)
    losses = {
        name: stage_loss(make_stage(logits), depth, everywhere(1), Processes(), weight)
        for name, depth, weight in (("far", far, 9.0), ("far off", far, 0.0), ("near", near, 9.0))
    }
    assert float(losses["far"].loss) == float(losses["far off"].loss)
    assert dict(zip(MEASURES, losses["near"].measures.tolist(), strict=True))["readout"] > 0


def test_half_precision_logits_give_a_float32_loss():
    logits = torch.randn(1, 4, 4, 4).bfloat16()
    loss = stage_loss(make_stage(logits), torch.full((1, 4, 4), 600.0), everywhere(), Processes(), 0.5)
    assert loss.loss.dtype == loss.measures.dtype == torch.float32
