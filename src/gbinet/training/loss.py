"""The loss of one stage, and what is measured of it. Always float32, whatever the network runs in."""

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
from gbinet.model.search import SearchState
from gbinet.training.distributed import Processes


@dataclass(frozen=True)
class StageLoss:
    """Loss of one stage. All tensors stay on the device: reading them would wait for it."""

    loss: Tensor  # scalar: this process's part of the mean over all valid pixels of the step
    valid: Tensor  # [B, h, w] bool: pixels that counted; the mask that the next stage starts from
    measures: Tensor  # [len(MEASURES)] float32, sums over this process's pixels


class LossOfStage(Protocol):
    """What teaches a stage; `stage_loss` is the one of the binary search."""

    def __call__(
        self,
        stage: Stage,
        depth: Tensor,  # [B, h, w] true depth at the stage's scale, 0 = unknown
        mask: Tensor,  # [B, h0, w0] bool: valid so far, at the scale of the stage before (or this one)
        processes: Processes,
        readout_weight: float = 0.0,
        recover: bool = False,
    ) -> StageLoss: ...


# What `measures` holds, each a sum over pixels, so that processes and steps can be added up.
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

    recover: inside a bin now is enough. Smoothing brings pixels back that a stage had lost.
    """
    known = depth > 0
    index, inside = search.label(stage.state, depth)  # [B, h, w]
    valid = known & inside
    if not recover:
        valid = valid & carried(mask, depth.shape[-2:])
    logits = stage.logits.float()  # [B, D, h, w]
    entropy = F.cross_entropy(logits, index, reduction="none") * valid  # [B, h, w]
    distance = (logits.detach().argmax(1) - index).abs()
    near = valid & (distance <= 1)
    error = torch.zeros_like(entropy)
    if readout_weight > 0:  # where, not times: an unknown depth is infinitely far off in inverse depth
        error = torch.where(near, readout_error(stage, depth), 0.0)
    counts = torch.stack([valid.sum(), near.sum()]).float()
    totals = processes.sum(counts).clamp(min=1)  # over all processes: one mean, however the batch is split
    loss = entropy.sum() / totals[0] + readout_weight * error.sum() / totals[1]
    with torch.no_grad():
        right = (valid & (distance == 0)).sum()
        sums = [counts[0], known.sum(), entropy.sum(), right, counts[1], error.sum(), counts[1]]
        measures = torch.stack([s.float() for s in sums])
    return StageLoss(loss, valid, measures)


ANSWERABLE = 2.5  # cells: a parent further away from the truth leads nowhere near it
GOOD = 1.25  # cells: parents this near the truth are all as good: the bins around them hold it
MOST_STAKE = 16.0  # cells: a wrong parent further away counts no more than this


def choice_loss(stage: Stage, depth: Tensor, processes: Processes) -> Tensor:
    """Of the parents that a stage chose: - log of the probability of the good ones, over the pixels that have
    a good one and a bad one. A mean, weighted by how far apart these are: on a slanted surface parents differ
    by a cell or two and little is lost, at a silhouette by a hundred. depth [B, h, w], 0 = unknown. Without a
    choice: 0."""
    if stage.choice is None:
        return depth.new_zeros(())
    state, grid = stage.state, stage.state.grid
    near, far = state.depth_range[:, :, None, None].unbind(1)  # [B, 1, 1] each
    inside = (depth > near) & (depth < far)
    position = grid.to_position(depth.clamp(min=near, max=far), state.depth_range) * grid.cells(state.stage)
    error = (stage.choice.cells.float() + 0.5 - position[:, None]).abs()  # [B, PARENTS, h, w]
    least = error.amin(1, keepdim=True)
    good = error <= (least + 0.25).clamp(min=GOOD)
    counted = inside & (least[:, 0] <= ANSWERABLE) & ~good.all(1)
    shares = stage.choice.logits.float().log_softmax(1)
    missed = -torch.where(good, shares, -torch.inf).logsumexp(1)  # [B, h, w]
    stake = torch.where(counted, (error.amax(1) - least[:, 0]).clamp(max=MOST_STAKE), 0.0)
    total = processes.sum(stake.sum()[None]).clamp(min=1)[0]
    return (stake * missed).sum() / total


def readout_error(stage: Stage, depth: Tensor) -> Tensor:
    """Smooth L1 of the continuous depth, in bins of the stage, [B, h, w]. depth [B, h, w]."""
    state, grid = stage.state, stage.state.grid
    expected = search.expected_depth(state, stage.probabilities)
    bins = grid.cells(state.stage + 1)
    difference = grid.to_position(expected, state.depth_range) - grid.to_position(depth, state.depth_range)
    return F.smooth_l1_loss(difference * bins, torch.zeros_like(difference), reduction="none", beta=0.25)


def refinement_loss(state: SearchState, depth: Tensor, processes: Processes) -> tuple[Tensor, Tensor]:
    """Of refined places: mean of log(1 + 2 |error|), in cells, over the pixels whose depth [B, h, w] is known
    and in the range; and its sum and the pixels' number, [2]. The logarithm: a search that went astray cannot
    be mended here and must not drown the others.
    """
    error, valid = _error_in_cells(state, depth)
    loss = torch.where(valid, torch.log1p(2 * error), 0.0)
    count = valid.sum().float()
    total = processes.sum(count[None]).clamp(min=1)[0]
    return loss.sum() / total, torch.stack([loss.detach().sum(), count])


def confidence_loss(
    logit: Tensor,  # [B, 1, h, w] of the refiner's confidence
    state: SearchState,  # refined, at full size
    depth: Tensor,  # [B, h, w], 0 = unknown, or in complete samples: nothing is there
    cameras: Camera,  # [B, V]
    processes: Processes,
    complete: Tensor | None = None,  # [B] bool; None: no sample is
) -> Tensor:
    """Cross-entropy against what the confidence claims: that the refined depth is right to one pixel of
    reprojection. Mean over the pixels whose depth is known; where nothing is, whatever is said is wrong."""
    known = depth > 0
    right = known & is_right(search.continuous_depth(state).detach(), depth, cameras)
    loss = F.binary_cross_entropy_with_logits(logit[:, 0].float(), right.float(), reduction="none")
    judged = known if complete is None else known | complete[:, None, None]
    total = processes.sum(judged.sum().float()[None]).clamp(min=1)[0]
    return torch.where(judged, loss, 0.0).sum() / total


def _error_in_cells(state: SearchState, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Error of a state's answers in cells, and where the depth is known and in the range, [B, h, w] each."""
    assert state.fractional_cell is not None
    near, far = state.depth_range[:, :, None, None].unbind(1)  # [B, 1, 1] each
    valid = (depth > near) & (depth < far)
    position = state.grid.to_position(depth.clamp(min=near, max=far), state.depth_range)
    return (state.fractional_cell - position * state.grid.cells(state.stage)).abs(), valid


def carried(mask: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """A mask [B, h, w] at a finer size: nearest up-sampling."""
    if tuple(mask.shape[-2:]) == tuple(size):
        return mask
    return F.interpolate(mask[:, None].float(), size=tuple(size), mode="nearest")[:, 0] > 0.5
