"""Four ways to update the weights with a batch. All run the same stages.

per-stage       the paper's: encoder, backward pass and optimiser step for every stage by itself
accumulate      the sum of all stages' losses, one backward pass: all stages' graphs are held at once
shared-encoder  one encoder pass; each stage's loss is propagated to the feature maps and its graph is freed,
                then one backward pass through the encoder. Accumulate's gradient, one stage's memory.
refiner         the network is frozen except for its refiner, which learns from the last stage; in the other
                modes a refiner is trained with the network

To save memory, per-stage and shared-encoder may run the encoder twice where this says once: see encoding.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gbinet.model.checks import evaluating
from gbinet.model.gbinet import Features, GBiNet, Stage
from gbinet.model.result import combined
from gbinet.model.search import SearchState
from gbinet.scenes.batch import Batch
from gbinet.scenes.transforms import depth_pyramid
from gbinet.training.config import TrainConfig, UpdateMode
from gbinet.training.distributed import Processes
from gbinet.training.encoding import Encoding, precision
from gbinet.training.loss import (
    LossOfStage,
    StageLoss,
    choice_loss,
    confidence_loss,
    refinement_loss,
    stage_loss,
)


@dataclass(frozen=True)
class Step:
    """What an update needs besides network and batch."""

    config: TrainConfig
    stages: int  # to train in this step
    processes: Processes = Processes()  # noqa: RUF009  # frozen
    loss: LossOfStage = stage_loss


Update = Callable[[GBiNet, Batch, Step, Callable[[], None]], Tensor]


def update(mode: UpdateMode, model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    """Compute the gradients of a batch, and call `optimise` when they are complete.

    Returns the measures of every stage, [stages, len(MEASURES)], on the device.
    """
    return MODES[mode](model, batch, step, optimise)


def per_stage(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    carry = _Carry(_all_pixels(batch))
    for _ in range(step.stages):
        encoding = Encoding(model, batch, step.config)
        loss, carry, stage_measures = _stage(model, batch, step, encoding.features, carry)
        loss.backward()  # type: ignore[no-untyped-call]
        measures.append(stage_measures)
        del loss
        encoding.backward()
        del encoding  # free it before the next encoder pass
        optimise()
    return torch.stack(measures)


def accumulate(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    carry = _Carry(_all_pixels(batch))
    with precision(step.config, batch):
        features = model.encode(batch.images)
    total = torch.zeros((), device=batch.images.device)
    for _ in range(step.stages):
        loss, carry, stage_measures = _stage(model, batch, step, features, carry)
        total = total + loss
        measures.append(stage_measures)
    total.backward()  # type: ignore[no-untyped-call]
    optimise()
    return torch.stack(measures)


def shared_encoder(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    carry = _Carry(_all_pixels(batch))
    encoding = Encoding(model, batch, step.config)
    for _ in range(step.stages):
        loss, carry, stage_measures = _stage(model, batch, step, encoding.features, carry)
        loss.backward()  # type: ignore[no-untyped-call]
        measures.append(stage_measures)
        del loss  # frees the graph of this stage before the next one
    encoding.backward()
    optimise()
    return torch.stack(measures)


def refiner(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    with evaluating(model), torch.no_grad(), precision(step.config, batch):  # as in inference
        features = model.encode(batch.images)
        # The configured number, because computing it from the cameras would wait for the device.
        bins = model.config.grid.first_bins
        result = model.search(
            features, batch.cameras, batch.depth_range,
            stages=step.stages, readout="smooth", keep_stages=True, first_bins=bins,
        )  # fmt: skip
    with precision(step.config, batch):
        refined, logit = model.refined(result.stages[-1], features[-1][:, 0], result.confidence[:, None])
    loss, readout = _refiner_loss(refined, logit, _true_depth(model, batch, step.stages), batch, step)
    loss.backward()  # type: ignore[no-untyped-call]
    measures = []
    mask = _all_pixels(batch)
    with torch.no_grad():
        for stage in result.stages:
            bins_loss = _bins_loss(model, batch, step, stage, mask)
            mask = bins_loss.valid
            measures.append(bins_loss.measures)
    measures[-1] = torch.cat([measures[-1][:-2], readout])  # of the last stage, the refiner's read-out
    optimise()
    return torch.stack(measures)


MODES: dict[UpdateMode, Update] = {
    "per-stage": per_stage,
    "accumulate": accumulate,
    "shared-encoder": shared_encoder,
    "refiner": refiner,
}


@dataclass(frozen=True)
class _Carry:
    """What the next stage needs from the stages so far. Nothing in it has a gradient."""

    mask: Tensor  # [B, h, w] bool: pixels that counted so far
    state: SearchState | None = None
    confidence: Tensor | None = None  # [B, 1, h, w] of the stages so far, for a refiner


def _stage(
    model: GBiNet, batch: Batch, step: Step, features: Features, carry: _Carry
) -> tuple[Tensor, _Carry, Tensor]:
    """The next stage: its weighted loss, what the stage after it needs, its measures [M]."""
    with precision(step.config, batch):
        state = carry.state or model.start(features, batch.depth_range)
        stage = model.step(features, batch.cameras, state)
    bins_loss = _bins_loss(model, batch, step, stage, carry.mask)
    number = stage.next_state.stage
    truth = _true_depth(model, batch, number)
    total = bins_loss.loss + step.config.choice_weight * choice_loss(stage, truth, step.processes)
    confidence = None
    if model.refiner is not None:
        joint = model.config.joint_confidence
        with torch.no_grad():
            confidence = combined(model.confidence(stage), carry.confidence, joint)
        if number == step.stages and model.config.scale_of(number) == 1:
            mean = confidence if joint else confidence / number
            with precision(step.config, batch):
                refined, logit = model.refined(stage, features[-1][:, 0], mean)
            refiner_loss, _ = _refiner_loss(refined, logit, truth, batch, step)
            total = total + step.config.refiner_weight * refiner_loss
    total = total * step.config.stage_weight(number)
    return total, _Carry(bins_loss.valid, stage.next_state, confidence), bins_loss.measures


def _refiner_loss(
    refined: SearchState, logit: Tensor | None, truth: Tensor, batch: Batch, step: Step
) -> tuple[Tensor, Tensor]:
    """Loss of the refined depth, and of its confidence if there is one; and measures of the depth, [2]."""
    loss, readout = refinement_loss(refined, truth, step.processes)
    if logit is not None:
        loss = loss + confidence_loss(logit, refined, truth, batch.cameras, step.processes, batch.complete)
    return loss, readout


def _bins_loss(model: GBiNet, batch: Batch, step: Step, stage: Stage, mask: Tensor) -> StageLoss:
    """The loss of the bins of one stage. mask [B, h, w] bool: valid pixels of the stage before."""
    number = stage.next_state.stage
    depth = _true_depth(model, batch, number)
    readout = step.config.readout_weight if number == step.stages else 0.0
    return step.loss(stage, depth, mask, step.processes, readout, step.config.recover)


def _true_depth(model: GBiNet, batch: Batch, number: int) -> Tensor:
    """The true depth at the scale of a stage, [B, h, w]; 0 = unknown."""
    truth = torch.where(batch.mask, batch.depth, 0.0)  # [B, H, W]
    (depth,) = depth_pyramid(truth, (model.config.scale_of(number),))
    return depth


def _all_pixels(batch: Batch) -> Tensor:
    """The mask before the first stage, [B, 1, 1]: all pixels are valid."""
    return torch.ones(len(batch.images), 1, 1, dtype=torch.bool, device=batch.images.device)
