"""The loss of a dense search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.model.gbinet import Stage
from gbinet.training.distributed import Processes
from gbinet.training.loss import StageLoss
from gbinet_research.dense import DenseSearch

RANGE = 510.0  # regression is trained as published for DTU: in a unit in which the range is so many wide


@dataclass(frozen=True)
class RegressionLoss:
    """Smooth L1 of the expected depth, mean over the pixels whose true depth [B, h, w] lies in the range.

    As published, also over those whose depth is outside the stage's window: the answer is drawn to its end.
    Measures: 'cross_entropy' is this loss, 'right' and 'within_1_bin' count answers half a hypothesis and one
    away at most. What else a loss is told is of the binary search and is not looked at.
    """

    search: DenseSearch

    def __call__(
        self,
        stage: Stage,
        depth: Tensor,  # [B, h, w]
        mask: Tensor,
        processes: Processes,
        readout_weight: float = 0.0,
        recover: bool = False,
    ) -> StageLoss:
        near, far = stage.state.depth_range[:, :, None, None].unbind(1)  # [B, 1, 1] each
        valid = (depth >= near) & (depth <= far)
        expected = self.search.expected_depth(stage.state, stage.probabilities)  # [B, h, w]
        error = (expected - depth) * (RANGE / (far - near))
        loss = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none") * valid
        count = valid.sum().float()
        total = processes.sum(count[None]).clamp(min=1)[0]
        with torch.no_grad():
            low, high = self.search.window(stage.state)
            steps = (expected - depth).abs() / ((high - low) / (stage.logits.shape[1] - 1))
            half, one = (valid & (steps <= 0.5)).sum(), (valid & (steps <= 1)).sum()
            sums = [count, (depth > 0).sum(), loss.sum(), half, one, loss.sum(), count]
            measures = torch.stack([s.float() for s in sums])
        return StageLoss(loss.sum() / total, valid, measures)
