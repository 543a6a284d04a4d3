"""The loss of dense searches: smooth L1 in DTU's millimetres, whatever the unit of the scene is."""

from __future__ import annotations

import pytest
import torch

from gbinet.model.gbinet import Stage
from gbinet.training.distributed import Processes
from gbinet.training.loss import MEASURES, StageLoss
from gbinet_research.dense import PRESETS, DenseSearch
from gbinet_research.regression import RegressionLoss

SEARCH = DenseSearch(PRESETS["dense-linear"])


def loss_of(off: float, unit: float = 1.0, unknown: int = 0, outside: int = 0) -> StageLoss:
    """A network that is certain of hypothesis 100 everywhere; the truth is `off` millimetres nearer."""
    state = SEARCH.start(torch.tensor([[425.0, 935.0]]) * unit, 4, 5)
    logits = torch.zeros(1, 192, 4, 5)
    logits[:, 100] = 1e4
    answer = SEARCH.expected_depth(state, logits.softmax(1))
    truth = answer - off * unit
    truth.view(-1)[:unknown] = 0
    truth.view(-1)[unknown : unknown + outside] = 2000 * unit
    stage = Stage(state, logits, SEARCH.follow(state, logits))
    return RegressionLoss(SEARCH)(stage, truth, torch.ones(1, 1, 1, dtype=torch.bool), Processes())


@pytest.mark.parametrize("unit", [1.0, 0.001, 12.0])
@pytest.mark.parametrize(("off", "expected"), [(0.0, 0.0), (0.5, 0.125), (2.0, 1.5), (-20.0, 19.5)])
def test_smooth_l1_in_a_unit_in_which_the_range_is_510(off: float, expected: float, unit: float) -> None:
    assert float(loss_of(off, unit).loss) == pytest.approx(expected, abs=2e-3)


def test_only_true_depths_in_the_range_count() -> None:
    loss = loss_of(2.0, unknown=3, outside=4)
    assert float(loss.loss) == pytest.approx(1.5, abs=1e-3)
    assert int(loss.valid.sum()) == 13
    measured = dict(zip(MEASURES, loss.measures.tolist(), strict=True))
    assert measured["valid"] == 13 and measured["known"] == 17
    assert measured["right"] == 0 and measured["within_1_bin"] == 13  # a step is 510 / 191 = 2.7 mm


def test_nothing_to_count_is_no_loss() -> None:
    assert float(loss_of(2.0, unknown=20).loss) == 0.0
