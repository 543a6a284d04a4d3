"""Losses of a stage and of the refiner, with measures. In float32, whatever the network runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import Camera
from gbinet.model import search
from gbinet.model.gbinet import Stage
from gbinet.model.geometry import is_right
from gbinet.model.result import upsampled
from gbinet.model.search import SearchState
from gbinet.training.distributed import Processes


@dataclass(frozen=True)
class StageLoss:
    """Loss of one stage. All tensors stay on the device, because reading them would wait for it."""

    loss: Tensor  # scalar: this process's part of the mean over all valid pixels of the step
    valid: Tensor  # [B, h, w] bool: pixels that counted; the mask of the next stage
    measures: Tensor  # [len(MEASURES)] float32, sums over this process's pixels


class LossOfStage(Protocol):
    """The loss of a stage; that of the binary search is `stage_loss`."""

    def __call__(
        self,
        stage: Stage,
        depth: Tensor,  # [B, h, w] true depth at the stage's scale, 0 = unknown
        mask: Tensor,  # [B, h0, w0] bool: valid so far, at the scale of the stage before (or this one)
        processes: Processes,
        readout_weight: float = 0.0,
        recover: bool = False,
    ) -> StageLoss: ...


# Names of the `measures`. Each is a sum over pixels, so that those of processes and steps can be added up.
MEASURES = ("valid", "known", "cross_entropy", "right", "within_1_bin", "readout", "readout_pixels")


def stage_loss(
    stage: Stage,
    depth: Tensor,  # [B, h, w]
    mask: Tensor,  # [B, h0, w0]
    processes: Processes,
    readout_weight: float = 0.0,
    recover: bool = False,
) -> StageLoss:
    """Cross-entropy, mean over valid pixels: true depth known, inside a bin now and at all stages before.

    recover: inside a bin now is enough, because smoothing can bring back pixels that a stage has lost.
    """
    known = depth > 0
    index, inside = search.label(stage.state, depth)  # [B, h, w]
    valid = known & inside
    if not recover:
        valid = valid & upsampled_mask(mask, depth.shape[-2:])
    logits = stage.logits.float()  # [B, D, h, w]
    entropy = F.cross_entropy(logits, index, reduction="none") * valid  # [B, h, w]
    distance = (logits.detach().argmax(1) - index).abs()
    near = valid & (distance <= 1)
    error = torch.zeros_like(entropy)
    if readout_weight > 0:  # where, not *: the error of an unknown depth is infinite in inverse depth
        error = torch.where(near, readout_error(stage, depth), 0.0)
    counts = torch.stack([valid.sum(), near.sum()]).float()
    totals = processes.sum(counts).clamp(min=1)  # over all processes: one mean, however the batch is split
    loss = entropy.sum() / totals[0] + readout_weight * error.sum() / totals[1]
    with torch.no_grad():
        right = (valid & (distance == 0)).sum()
        sums = [counts[0], known.sum(), entropy.sum(), right, counts[1], error.sum(), counts[1]]
        measures = torch.stack([s.float() for s in sums])
    return StageLoss(loss, valid, measures)


REACHABLE = 2.5  # cells: from a parent further from the truth, later stages cannot reach it
GOOD = 1.25  # cells: from parents this close to the truth, the next bins contain it
MOST_WEIGHT = 16.0  # cells: largest weight of a pixel


def choice_loss(stage: Stage, depth: Tensor, processes: Processes) -> Tensor:
    """Loss of the choice of parents: -log of the probability of the good ones; 0 without a choice.

    The mean over pixels with a good and a bad parent, weighted by the error of the worst in cells: on a
    slanted surface parents differ by a cell or two, at a silhouette by a hundred. depth [B, h, w], 0 =
    unknown.
    """
    if stage.choice is None:
        return depth.new_zeros(())
    state, grid = stage.state, stage.state.grid
    near, far = state.depth_range[:, :, None, None].unbind(1)  # [B, 1, 1] each
    inside = (depth > near) & (depth < far)
    position = grid.to_position(depth.clamp(min=near, max=far), state.depth_range) * grid.cells(state.stage)
    error = (stage.choice.cells.float() + 0.5 - position[:, None]).abs()  # [B, PARENTS, h, w]
    least = error.amin(1, keepdim=True)
    good = error <= (least + 0.25).clamp(min=GOOD)
    counted = inside & (least[:, 0] <= REACHABLE) & ~good.all(1)
    log_probabilities = stage.choice.logits.float().log_softmax(1)
    loss = -torch.where(good, log_probabilities, -torch.inf).logsumexp(1)  # [B, h, w]
    weight = torch.where(counted, (error.amax(1) - least[:, 0]).clamp(max=MOST_WEIGHT), 0.0)
    total = processes.sum(weight.sum()[None]).clamp(min=1)[0]
    return (weight * loss).sum() / total


def readout_error(stage: Stage, depth: Tensor) -> Tensor:
    """Smooth L1 of the continuous depth, in bins of the stage, [B, h, w]. depth [B, h, w]."""
    state, grid = stage.state, stage.state.grid
    expected = search.expected_depth(state, stage.probabilities)
    bins = grid.cells(state.stage + 1)
    difference = grid.to_position(expected, state.depth_range) - grid.to_position(depth, state.depth_range)
    return F.smooth_l1_loss(difference * bins, torch.zeros_like(difference), reduction="none", beta=0.25)


def refinement_loss(state: SearchState, depth: Tensor, processes: Processes) -> tuple[Tensor, Tensor]:
    """Loss of refined cells: mean of log(1 + 2 |error in cells|) over pixels with a known depth in the range.

    The logarithm keeps pixels whose search failed, which a refiner cannot repair, from dominating the others.
    depth [B, h, w]. Also returns the sum and the number of pixels, [2].
    """
    error, valid = _error_in_cells(state, depth)
    loss = torch.where(valid, torch.log1p(2 * error), 0.0)
    count = valid.sum().float()
    total = processes.sum(count[None]).clamp(min=1)[0]
    return loss.sum() / total, torch.stack([loss.detach().sum(), count])


def confidence_loss(
    logit: Tensor,  # [B, 1, h, w] of the refiner's confidence
    state: SearchState,  # refined, at full size
    depth: Tensor,  # [B, h, w], 0 = unknown; in complete samples: no surface
    cameras: Camera,  # [B, V]
    processes: Processes,
    complete: Tensor | None = None,  # [B] bool: depth is known wherever there is a surface; None: of none
) -> Tensor:
    """Binary cross-entropy with whether the refined depth is right (`is_right`).

    Mean over the pixels that can be judged: the depth is known, or there is no surface and any depth is
    wrong.
    """
    known = depth > 0
    right = known & is_right(search.continuous_depth(state).detach(), depth, cameras)
    loss = F.binary_cross_entropy_with_logits(logit[:, 0].float(), right.float(), reduction="none")
    judged = known if complete is None else known | complete[:, None, None]
    total = processes.sum(judged.sum().float()[None]).clamp(min=1)[0]
    return torch.where(judged, loss, 0.0).sum() / total


def _error_in_cells(state: SearchState, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Error of a state's fractional cells, and where the depth is known and in the range, [B, h, w] each."""
    assert state.fractional_cell is not None
    near, far = state.depth_range[:, :, None, None].unbind(1)  # [B, 1, 1] each
    valid = (depth > near) & (depth < far)
    position = state.grid.to_position(depth.clamp(min=near, max=far), state.depth_range)
    return (state.fractional_cell - position * state.grid.cells(state.stage)).abs(), valid


def upsampled_mask(mask: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """A mask [B, h, w] at a larger size, by nearest neighbours."""
    if tuple(mask.shape[-2:]) == tuple(size):
        return mask
    return upsampled(mask[:, None].float(), size)[:, 0] > 0.5
