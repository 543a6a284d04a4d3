"""One optimiser step: sum over processes, clipping, check for NaN, Adam, averaged weights.

Nothing here waits for the GPU except `check`. `begin`, `apply` and `end` can be recorded in a CUDA graph:
they read and write tensors that stay in place, and numbers of the host are passed by `schedule`.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from gbinet.errors import GBiNetError
from gbinet.model.gbinet import GBiNet
from gbinet.ops.layout import CHANNELS_LAST
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import Processes

MILESTONES = (10 / 16, 12 / 16, 14 / 16)  # the paper's: shares of the run after which the rate halves
FINAL_RATE = 0.01  # at the end of the cosine, as a share of the highest
BAD_IN_A_ROW = 3  # batches in a row without a finite gradient that stop the run


def learning_rate(config: TrainConfig, step: int, fraction: float) -> float:
    """The learning rate after `step` steps, when `fraction` of the whole run is done."""
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    if config.schedule == "steps":
        decay = 0.5 ** sum(fraction >= m - 1e-9 for m in MILESTONES)
    else:
        cosine = 0.5 * (1 + math.cos(math.pi * min(max(fraction, 0.0), 1.0)))
        decay = FINAL_RATE + (1 - FINAL_RATE) * cosine
    return config.learning_rate * warmup * decay


class Optimiser:
    """Adam with clipping, averaged weights, and a check for gradients that are not finite.

    A batch whose gradient is not finite changes nothing: Adam skips it on the device (as with a gradient
    scaler), and the statistics of batch norm are restored. `check` reports it later, when the log waits for
    the device anyway.
    """

    def __init__(self, model: GBiNet, config: TrainConfig, processes: Processes) -> None:
        device = next(model.parameters()).device
        self.config = config
        self.processes = processes
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.rate = torch.tensor(config.learning_rate, device=device)
        self.adam = torch.optim.Adam(self.parameters, self.rate, fused=True, capturable=device.type == "cuda")
        self.averaged: GBiNet | None = (
            copy.deepcopy(model).eval().requires_grad_(False) if config.ema else None
        )
        self.statistics = flatten_statistics(model)  # [N]: all running means and variances
        if self.averaged is not None:
            pairs = zip(self.averaged.parameters(), model.parameters(), strict=True)
            self._averaged_parameters: list[Tensor] = [a for a, own in pairs if own.requires_grad]
            self._averaged_statistics = flatten_statistics(self.averaged)
        self._before = self.statistics.clone()
        self._renewal = torch.zeros((), device=device)  # share of the new weights in the averaged ones
        self._bad = torch.zeros((), device=device)  # 1 = the current batch is bad
        self._bad_run = torch.zeros((), device=device)  # bad batches in a row
        self._worst_run = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)  # bad batches of this run
        # Since the last check:
        self.largest_norm = torch.zeros((), device=device)  # of the gradient
        self.sum_of_norms = torch.zeros((), device=device)
        self.clipped = torch.zeros((), device=device)  # optimiser steps that were scaled down
        self.applied = torch.zeros((), device=device)  # optimiser steps

    def schedule(self, rate: float, step: int) -> None:
        """Before a batch: set its learning rate; `step` batches were done before it."""
        self.rate.fill_(rate)
        decay = min(self.config.ema, (1 + step) / (10 + step))  # an average of few steps changes faster
        self._renewal.fill_(1 - decay)

    def begin(self) -> None:
        """Before the gradients of a batch."""
        self._before.copy_(self.statistics)
        self._bad.zero_()

    def apply(self) -> None:
        """The gradients are complete: one optimiser step."""
        self.processes.sum_gradients(self.parameters)
        with_gradient = [p for p in self.parameters if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(with_gradient, self.config.clip or math.inf)
        finite = torch.isfinite(norm)
        bad = (~finite).float()
        self._bad.copy_(torch.maximum(self._bad, bad))
        usable = torch.where(finite, norm, 0.0)
        self.largest_norm.copy_(torch.maximum(self.largest_norm, usable))
        self.sum_of_norms += usable
        if self.config.clip:
            self.clipped += norm > self.config.clip
        self.applied += 1
        self.adam.found_inf = bad  # type: ignore[attr-defined]  # what torch's gradient scaler sets
        self.adam.grad_scale = None  # type: ignore[attr-defined]
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def end(self) -> None:
        """After a batch."""
        self.statistics.copy_(torch.where(self._bad > 0, self._before, self.statistics))
        self.skipped += self._bad
        self._bad_run.copy_((self._bad_run + 1) * self._bad)
        self._worst_run.copy_(torch.maximum(self._worst_run, self._bad_run))
        if self.averaged is not None:
            averages = [*self._averaged_parameters, self._averaged_statistics]
            gaps = torch._foreach_sub([*(p.data for p in self.parameters), self.statistics], averages)
            torch._foreach_mul_(gaps, self._renewal)
            torch._foreach_add_(averages, gaps)

    def check(self) -> dict[str, float]:
        """Read the counters, which waits for the GPU. An error if too many batches in a row were bad."""
        recent = [self.sum_of_norms, self.largest_norm, self.clipped, self.applied]
        skipped, worst, *values = torch.stack([self.skipped, self._worst_run, *recent]).tolist()
        norms, largest, clipped, steps = *values[:3], max(values[3], 1)
        result = {
            "skipped": skipped,
            "gradient_norm": norms / steps,
            "largest_gradient_norm": largest,
            "clipped": clipped / steps,
        }
        for counter in recent:
            counter.zero_()
        if worst >= BAD_IN_A_ROW:
            raise GBiNetError(
                f"{int(worst)} batches in a row gave a loss or gradient that is not finite (they did not "
                "change the weights). Start again from the last weights with a smaller --learning-rate or "
                "with --precision float32; if it happens in the first steps, look at the data"
            )
        return result


def flatten_statistics(model: nn.Module) -> Tensor:
    """Turn all running means and variances of a network into views of one tensor [N], and return it."""
    buffers = [
        (module, name)
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name in ("running_mean", "running_var")
    ]
    flat = torch.cat([getattr(module, name) for module, name in buffers])
    sizes = [getattr(module, name).numel() for module, name in buffers]
    parts = flat.split(sizes)  # type: ignore[no-untyped-call]
    for (module, name), part in zip(buffers, parts, strict=True):
        setattr(module, name, part)
    return flat


def to_channels_last(model: nn.Module) -> None:
    """Store convolution weights channels last, so that convolutions and batch norms run in that layout.

    On small-channel 3D volumes torch's batch norm is several times slower in the default layout.
    """
    for parameter in model.parameters():
        if parameter.dim() in CHANNELS_LAST:
            target = torch.empty_like(parameter, memory_format=CHANNELS_LAST[parameter.dim()])
            parameter.data = target.copy_(parameter.data)
