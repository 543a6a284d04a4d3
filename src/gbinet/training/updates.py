"""Four ways to turn a batch into updates of the weights. All walk the same stages.

per-stage       the paper's: encoder, backward pass and optimiser step for every stage by itself
accumulate      the losses of all stages together, one backward pass: all stages' graphs are held at once
shared-encoder  one encoder pass; every stage's loss goes back into the feature maps and its graph is freed at
                once, then one backward pass through the encoder. Accumulate's gradient, one stage's memory.
refiner         the network stays as it is, and only its refiner learns, from what the last stage says; in the
                other modes a refiner learns with the network

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
    """What the updates need to know about one step."""

    config: TrainConfig
    stages: int  # to train in this step
    processes: Processes = Processes()  # noqa: RUF009  # frozen
    loss: LossOfStage = stage_loss


Update = Callable[[GBiNet, Batch, Step, Callable[[], None]], Tensor]


def update(mode: UpdateMode, model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    """One batch: gradients into the weights, `optimise` when they are complete.

    Returns the measures of every stage, [stages, len(MEASURES)], on the device.
    """
    return MODES[mode](model, batch, step, optimise)


def per_stage(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    walk = _Walk(_all_pixels(batch))
    for _ in range(step.stages):
        encoding = Encoding(model, batch, step.config)
        loss, walk, of_stage = _stage(model, batch, step, encoding.features, walk)
        loss.backward()  # type: ignore[no-untyped-call]
        measures.append(of_stage)
        del loss
        encoding.backward()
        del encoding  # free it before the next encoder pass
        optimise()
    return torch.stack(measures)


def accumulate(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    walk = _Walk(_all_pixels(batch))
    with precision(step.config, batch):
        features = model.encode(batch.images)
    total = torch.zeros((), device=batch.images.device)
    for _ in range(step.stages):
        loss, walk, of_stage = _stage(model, batch, step, features, walk)
        total = total + loss
        measures.append(of_stage)
    total.backward()  # type: ignore[no-untyped-call]
    optimise()
    return torch.stack(measures)


def shared_encoder(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    walk = _Walk(_all_pixels(batch))
    encoding = Encoding(model, batch, step.config)
    for _ in range(step.stages):
        loss, walk, of_stage = _stage(model, batch, step, encoding.features, walk)
        loss.backward()  # type: ignore[no-untyped-call]
        measures.append(of_stage)
        del loss  # the graph of this stage is not needed any more: free it before the next one
    encoding.backward()
    optimise()
    return torch.stack(measures)


def refiner(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    with evaluating(model), torch.no_grad(), precision(step.config, batch):  # it answers as it will in use
        features = model.encode(batch.images)
        # As configured, whatever the cameras are: looking at them would wait for the device.
        bins = model.config.grid.first_bins
        result = model.search(
            features, batch.cameras, batch.depth_range,
            stages=step.stages, readout="smooth", keep_stages=True, first_bins=bins,
        )  # fmt: skip
    with precision(step.config, batch):
        refined, logit = model.refined(result.stages[-1], features[-1][:, 0], result.confidence[:, None])
    truth = _true_depth(model, batch, step.stages)
    loss, error = refinement_loss(refined, truth, step.processes)
    if logit is not None:
        loss = loss + confidence_loss(logit, refined, truth, batch.cameras, step.processes, batch.complete)
    loss.backward()  # type: ignore[no-untyped-call]
    measures = []
    mask = _all_pixels(batch)
    with torch.no_grad():
        for stage in result.stages:
            of_stage = _loss(model, batch, step, stage, mask)
            mask = of_stage.valid
            measures.append(of_stage.measures)
    measures[-1] = torch.cat([measures[-1][:-2], error])  # its read-out is the refiner's
    optimise()
    return torch.stack(measures)


MODES: dict[UpdateMode, Update] = {
    "per-stage": per_stage,
    "accumulate": accumulate,
    "shared-encoder": shared_encoder,
    "refiner": refiner,
}


@dataclass(frozen=True)
class _Walk:
    """What a stage hands to the next one. Nothing in it has a gradient."""

    mask: Tensor  # [B, h, w] bool: pixels that counted so far
    state: SearchState | None = None
    confidence: Tensor | None = None  # [B, 1, h, w] of the stages so far, where a refiner will read it


def _stage(
    model: GBiNet, batch: Batch, step: Step, features: Features, walk: _Walk
) -> tuple[Tensor, _Walk, Tensor]:
    """The next stage: its loss, what follows, its measures [M]."""
    with precision(step.config, batch):
        state = walk.state or model.start(features, batch.depth_range)
        stage = model.step(features, batch.cameras, state)
    own = _loss(model, batch, step, stage, walk.mask)
    number = stage.next_state.stage
    truth = _true_depth(model, batch, number)
    total = own.loss + step.config.choice_weight * choice_loss(stage, truth, step.processes)
    confidence = None
    if model.refiner is not None:
        with torch.no_grad():
            joint = model.config.joint_confidence
            confidence = combined(model.confidence(stage), walk.confidence, joint)
            shown = confidence if joint else confidence / number
        if number == step.stages and model.config.scale_of(number) == 1:
            with precision(step.config, batch):
                refined, logit = model.refined(stage, features[-1][:, 0], shown)
            refinement, _ = refinement_loss(refined, truth, step.processes)
            if logit is not None:
                right = confidence_loss(logit, refined, truth, batch.cameras, step.processes, batch.complete)
                refinement = refinement + right
            total = total + step.config.refiner_weight * refinement
    total = total * step.config.stage_weight(number)
    return total, _Walk(own.valid, stage.next_state, confidence), own.measures


def _loss(model: GBiNet, batch: Batch, step: Step, stage: Stage, mask: Tensor) -> StageLoss:
    """Of one stage. mask [B, h, w] bool, of the stage before."""
    number = stage.next_state.stage
    depth = _true_depth(model, batch, number)
    readout = step.config.readout_weight if number == step.stages else 0.0
    return step.loss(stage, depth, mask, step.processes, readout, step.config.recover)


def _true_depth(model: GBiNet, batch: Batch, number: int) -> Tensor:
    """At the scale of a stage, [B, h, w]; 0 = unknown."""
    truth = torch.where(batch.mask, batch.depth, 0.0)  # [B, H, W]
    (depth,) = depth_pyramid(truth, (model.config.scale_of(number),))
    return depth


def _all_pixels(batch: Batch) -> Tensor:
    """The mask before the first stage, [B, 1, 1]: nothing is ruled out yet."""
    return torch.ones(len(batch.images), 1, 1, dtype=torch.bool, device=batch.images.device)
