"""Three ways to turn a batch into updates of the weights. All walk the same stages.

per-stage       the paper's: encoder, backward pass and optimiser step for every stage by itself
accumulate      the losses of all stages together, one backward pass: all stages' graphs are held at once
shared-encoder  one encoder pass; every stage's loss goes back into the feature maps and its graph is freed at
                once, then one backward pass through the encoder. Accumulate's gradient, one stage's memory.

Per-stage and shared-encoder can encode twice: first without a graph, for the stages to read; then, when the
stages' graphs are gone, with one, for the backward pass. Encoder and stages then share the memory instead of
adding up, for one more pass forwards through the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gbinet.data.batch import Batch
from gbinet.data.transforms import depth_pyramid
from gbinet.model.encoder import SCALES
from gbinet.model.gbinet import Features, GBiNet, Stage
from gbinet.model.strategies import State
from gbinet.training.config import TrainConfig, UpdateMode
from gbinet.training.distributed import Processes
from gbinet.training.loss import StageLoss, regression_loss, stage_loss


@dataclass(frozen=True)
class Step:
    """What the updates need to know about one step."""

    config: TrainConfig
    stages: int  # to train in this step
    processes: Processes = Processes()  # noqa: RUF009  # frozen


Update = Callable[[GBiNet, Batch, Step, Callable[[], None]], Tensor]


def update(mode: UpdateMode, model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    """One batch: gradients into the weights, `optimise` when they are complete.

    Returns the measures of every stage, [stages, len(MEASURES)], on the device.
    """
    return MODES[mode](model, batch, step, optimise)


def per_stage(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    state, mask = None, _all_pixels(batch)
    for _ in range(step.stages):
        encoding = _Encoding(model, batch, step)
        stage, loss = _stage(model, batch, step, encoding.features, state, mask)
        _weighted(step, stage, loss).backward()  # type: ignore[no-untyped-call]
        state, mask = stage.next_state, loss.valid
        measures.append(loss.measures)
        del stage, loss
        encoding.backward()
        del encoding  # free it before the next encoder pass
        optimise()
    return torch.stack(measures)


def accumulate(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    state, mask = None, _all_pixels(batch)
    with _precision(step, batch):
        features = model.encode(batch.images)
    total = torch.zeros((), device=batch.images.device)
    for _ in range(step.stages):
        stage, loss = _stage(model, batch, step, features, state, mask)
        total = total + _weighted(step, stage, loss)
        state, mask = stage.next_state, loss.valid
        measures.append(loss.measures)
    total.backward()  # type: ignore[no-untyped-call]
    optimise()
    return torch.stack(measures)


def shared_encoder(model: GBiNet, batch: Batch, step: Step, optimise: Callable[[], None]) -> Tensor:
    measures = []
    state, mask = None, _all_pixels(batch)
    encoding = _Encoding(model, batch, step)
    for _ in range(step.stages):
        stage, loss = _stage(model, batch, step, encoding.features, state, mask)
        _weighted(step, stage, loss).backward()  # type: ignore[no-untyped-call]
        state, mask = stage.next_state, loss.valid
        measures.append(loss.measures)
        del stage, loss  # the graph of this stage is not needed any more: free it before the next one
    encoding.backward()
    optimise()
    return torch.stack(measures)


class _Encoding:
    """Feature maps that stages send their gradients back to, and later on through the encoder."""

    def __init__(self, model: GBiNet, batch: Batch, step: Step) -> None:
        self._model, self._batch, self._step = model, batch, step
        self._encoded: Features = ()  # with the encoder's graph
        if step.config.encode_twice:
            with torch.no_grad(), _statistics_kept(model.encoder):
                read = self._encode()
        else:
            read = self._encoded = self._encode()
        self.features: Features = tuple(f.detach().requires_grad_() for f in read)

    def backward(self) -> None:
        """What has gathered in `features` goes into the encoder's weights. Only once."""
        gradients = [leaf.grad for leaf in self.features]
        self.features = ()
        encoded = self._encoded or self._encode()
        used = [(f, g) for f, g in zip(encoded, gradients, strict=True) if g is not None]
        self._encoded = encoded = ()
        torch.autograd.backward([f for f, _ in used], [g for _, g in used])

    def _encode(self) -> Features:
        with _precision(self._step, self._batch):
            return self._model.encode(self._batch.images)


@contextmanager
def _statistics_kept(module: nn.Module) -> Iterator[None]:
    """Batch norms use the batch's statistics as in training but do not learn from them."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    for norm in norms:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.sub_(1)


MODES: dict[UpdateMode, Update] = {
    "per-stage": per_stage,
    "accumulate": accumulate,
    "shared-encoder": shared_encoder,
}


def _stage(
    model: GBiNet,
    batch: Batch,
    step: Step,
    features: Features,
    state: State | None,
    mask: Tensor,  # [B, h, w] bool, of the stage before
) -> tuple[Stage, StageLoss]:
    with _precision(step, batch):
        state = state or model.start(features, batch.depth_range)
        stage = model.step(features, batch.cameras, state)
    number = stage.next_state.stage
    last = number == step.stages
    truth = torch.where(batch.mask, batch.depth, 0.0)  # [B, H, W]
    (depth,) = depth_pyramid(truth, (SCALES[model.config.scale_index(number)],))
    if model.strategy.regresses:
        return stage, regression_loss(model.strategy, stage, depth, step.processes)
    readout = step.config.readout_weight if last else 0.0
    return stage, stage_loss(stage, depth, mask, step.processes, readout)


def _weighted(step: Step, stage: Stage, loss: StageLoss) -> Tensor:
    return loss.loss * step.config.stage_weight(stage.next_state.stage)


def _all_pixels(batch: Batch) -> Tensor:
    """The mask before the first stage, [B, 1, 1]: nothing is ruled out yet."""
    return torch.ones(len(batch.images), 1, 1, dtype=torch.bool, device=batch.images.device)


def _precision(step: Step, batch: Batch) -> AbstractContextManager[None]:
    device = batch.images.device.type
    return torch.autocast(device, torch.bfloat16, enabled=step.config.precision == "bfloat16")
