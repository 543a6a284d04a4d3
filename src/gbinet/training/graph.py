"""A whole training step as one CUDA graph: the host launches it with one call instead of thousands.

Encoder, all stages forwards and backwards, clipping, the check for NaN, Adam and averaged weights are
recorded once and replayed for every batch of the same shape. Everything that changes between steps is a
tensor: the batch is copied into fixed buffers, learning rate and decay of the average are set by
`Optimiser.schedule`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from gbinet import ops
from gbinet.model.gbinet import GBiNet
from gbinet.scenes.batch import Batch
from gbinet.training.optimise import Optimiser
from gbinet.training.samples import MAKING_SAMPLES
from gbinet.training.updates import Step, update

EAGER_STEPS = 2  # of one shape before it is recorded: they compile kernels and create Adam's moments

Work = Callable[[], Tensor]


def eager_step(model: GBiNet, optimiser: Optimiser, batch: Batch, step: Step) -> Tensor:
    """One batch without a CUDA graph; its measures [stages, M]."""
    optimiser.begin()
    measures = update(step.config.update, model, batch, step, optimiser.apply)
    optimiser.end()
    return measures


def recordable(step: Step, batch: Batch) -> bool:
    """For one process on a GPU with the kernels: plain references and sums over processes need the host."""
    return step.config.cuda_graph and step.processes.count == 1 and ops.recordable(*batch.tensors())


def record(work: Work) -> Work:
    """Record what `work` launches on the GPU; calling the result launches it again."""
    graph = torch.cuda.CUDAGraph()
    # Only for this thread: others (a data loader that pins memory) may use the GPU meanwhile.
    with MAKING_SAMPLES, torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


class StepRunner:
    """Runs training steps: from a CUDA graph where possible, else eagerly. The results are the same.

    One graph is kept: a step of another shape (or with more stages) is run eagerly and, if the shape is
    repeated, recorded in place of the old one. The result of a step is overwritten by the next.
    """

    def __init__(self, model: GBiNet, optimiser: Optimiser, record: Callable[[Work], Work] = record) -> None:
        self.model = model
        self.optimiser = optimiser
        self.failure = ""  # why recording failed
        self._record = record
        self._shape: tuple[object, ...] = ()
        self._seen = 0  # steps of this shape so far
        self._buffers: Batch | None = None
        self._replay: Work | None = None

    @property
    def recorded(self) -> bool:
        return self._replay is not None

    def __call__(self, batch: Batch, step: Step) -> Tensor:
        """One batch; its measures [stages, M], on the device."""
        if self.failure or not recordable(step, batch):
            return eager_step(self.model, self.optimiser, batch, step)
        shape = (step.stages, *((t.shape, t.dtype) for t in batch.tensors()))
        if shape != self._shape:
            self.release()
            self._shape, self._seen = shape, 0
        self._seen += 1
        if self._replay is None and self._seen > EAGER_STEPS:
            self._record_step(batch, step)
        if self._replay is None:
            return eager_step(self.model, self.optimiser, batch, step)
        assert self._buffers is not None
        for buffer, tensor in zip(self._buffers.tensors(), batch.tensors(), strict=True):
            buffer.copy_(tensor, non_blocking=True)
        return self._replay()

    def _record_step(self, batch: Batch, step: Step) -> None:
        """Record a step without computing it: weights and statistics stay as they are."""
        buffers = copy.deepcopy(batch)
        try:
            self._replay = self._record(lambda: eager_step(self.model, self.optimiser, buffers, step))
            self._buffers = buffers
        except RuntimeError as error:
            self.optimiser.adam.zero_grad(set_to_none=True)  # those of the recording were never computed
            self.failure = str(error).splitlines()[0]

    def release(self) -> None:
        """Free the graph's memory for other work; the next step records it again."""
        if self._replay is None:
            return
        self._replay = self._buffers = None
        torch.cuda.empty_cache()
