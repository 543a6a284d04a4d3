"""Feature maps for a training step: the stages read them, and their gradients are propagated to the encoder.

Encoded once, the encoder's graph is held during the stages. Encoded twice, it is not: the stages read maps
without a graph, and when the stages' graphs are freed, the encoder runs again, its last layers (where images
do not affect each other) on a few images at a time. The peak of memory is then that of the encoder or of the
stages, not of both, for one more forward pass of the encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from gbinet.model.gbinet import Features, GBiNet
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig

IMAGES_AT_ONCE = 4  # of a batch, when the last layers run again


def precision(config: TrainConfig, batch: Batch) -> AbstractContextManager[None]:
    """Mixed precision, where the configuration says so."""
    device = batch.images.device.type
    return torch.autocast(device, torch.bfloat16, enabled=config.precision == "bfloat16")


class Encoding:
    """Feature maps that collect the gradients of the stages, and propagate them to the encoder at the end."""

    def __init__(self, model: GBiNet, batch: Batch, config: TrainConfig) -> None:
        self._model, self._batch, self._config = model, batch, config
        self._encoded: Features = ()  # with the encoder's graph
        if config.encode_twice:
            with torch.no_grad(), _frozen_statistics(model.encoder):
                read = self._encode()
        else:
            read = self._encoded = self._encode()
        self.features: Features = tuple(f.detach().requires_grad_() for f in read)

    def backward(self) -> None:
        """Propagate the gradients in `features` to the encoder's weights. Can be called once."""
        gradients = [leaf.grad for leaf in self.features]  # per scale, [B, V, C, h, w] or None
        self.features = ()
        if self._config.encode_twice:
            self._encode_again(gradients)
            return
        used = [(f, g) for f, g in zip(self._encoded, gradients, strict=True) if g is not None]
        torch.autograd.backward([f for f, _ in used], [g for _, g in used])

    def _encode(self) -> Features:
        with precision(self._config, self._batch):
            return self._model.encode(self._batch.images)

    def _encode_again(self, gradients: list[Tensor | None]) -> None:
        encoder = self._model.encoder
        with precision(self._config, self._batch):
            contracted = encoder.contract(self._model.normalised(self._batch.images))  # [B * V, C, h, w] each
        grad_contracted = [torch.zeros_like(m) for m in contracted]
        grad_outputs = {s: g.flatten(0, 1) for s, g in enumerate(gradients) if g is not None}
        gradients.clear()
        for first in range(0, len(contracted[0]), IMAGES_AT_ONCE):
            images = slice(first, first + IMAGES_AT_ONCE)
            parts = [m.detach()[images].requires_grad_() for m in contracted]
            with precision(self._config, self._batch):
                outputs = encoder.expand(parts, tuple(grad_outputs))
            torch.autograd.backward(outputs, [g[images] for g in grad_outputs.values()])
            del outputs
            for target, part in zip(grad_contracted, parts, strict=True):
                if part.grad is not None:
                    target[images] = part.grad
        grad_outputs.clear()
        torch.autograd.backward(contracted, grad_contracted)


@contextmanager
def _frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Inside, batch norms use the statistics of the batch without updating the running ones."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    counts = [counter.clone() for counter in counters]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for counter, count in zip(counters, counts, strict=True):
            counter.copy_(count)
