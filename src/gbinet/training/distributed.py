"""Training in several processes: the only file that knows ranks.

Every process computes its part of a mean over all pixels (see loss.py), so gradients are summed over
processes, and a step is the same as that of one process with the whole batch. Sums are explicit instead of by
the DDP wrapper, because a step has one backward pass per stage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 16 << 20  # gradients travel in flat buffers of about this size


@dataclass(frozen=True)
class Processes:
    """The processes that train together; the default is this one alone."""

    rank: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes, without gradient."""
        if self.count == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def any(self, flags: Sequence[bool], device: torch.device) -> list[bool]:
        """For each flag, whether it is true in any process: for decisions that all must take together."""
        if self.count == 1:
            return list(flags)
        return [n > 0 for n in self.sum(torch.tensor(flags, dtype=torch.float32, device=device)).tolist()]

    def from_main(self, value: float, device: torch.device) -> float:
        """The main process's value, in all processes (clocks differ)."""
        if self.count == 1:
            return value
        return float(
            self.sum(torch.tensor(value if self.is_main else 0.0, device=device, dtype=torch.float64))
        )

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes, in flat buckets."""
        if self.count == 1:
            return
        bucket: list[Tensor] = []
        size = 0
        for parameter in parameters:
            if parameter.grad is None:  # unused in this step, in all processes: they run the same stages
                continue
            bucket.append(parameter.grad)
            size += parameter.grad.nbytes
            if size >= BUCKET_BYTES:
                _sum_bucket(bucket)
                bucket, size = [], 0
        if bucket:
            _sum_bucket(bucket)

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy the main process's weights and buffers to all."""
        if self.count == 1:
            return
        for tensor in model.state_dict().values():
            shared = tensor.contiguous()
            dist.broadcast(shared, 0)
            tensor.copy_(shared)

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    def close(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()


def connect() -> tuple[Processes, torch.device]:
    """Join the processes that torchrun started, if it did; and the device of this process."""
    cuda = torch.cuda.is_available()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Processes(), torch.device("cuda" if cuda else "cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    return Processes(dist.get_rank(), dist.get_world_size()), device


def _sum_bucket(gradients: list[Tensor]) -> None:
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    parts = flat.split([g.numel() for g in gradients])  # type: ignore[no-untyped-call]
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view(gradient.shape))


# ---- batch norm over all processes -------------------------------------------------------------------------


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm with the statistics of all processes' samples. (torch's own does not run on CPUs.)"""

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # 2D and 3D alike

    def forward(self, input: Tensor) -> Tensor:  # [N, C, ...]
        if not self.training:
            return super().forward(input)
        axes = [0, *range(2, input.dim())]
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = values.new_tensor([input.numel() / input.shape[1]])
        sums = _sum_over_processes(torch.cat([values.sum(axes), count]))
        total = sums[-1]
        mean = sums[:-1] / total  # [C]
        shape = (1, -1) + (1,) * (input.dim() - 2)
        centred = values - mean.view(shape)
        # Squared deviations in a second pass, to avoid cancellation, as in torch's own batch norm.
        variance = _sum_over_processes(centred.square().sum(axes)) / total
        with torch.no_grad():
            assert self.running_mean is not None and self.running_var is not None
            assert self.momentum is not None and self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * total / (total - 1), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale.view(shape) + self.bias.view(shape)).to(input.dtype)


class _SumOverProcesses(torch.autograd.Function):
    """All-reduce whose gradient is an all-reduce: every process's loss depends on every process's samples."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum_over_processes(values: Tensor) -> Tensor:
    return cast(Tensor, _SumOverProcesses.apply(values))  # type: ignore[no-untyped-call]


def synchronise_batch_norm(model: nn.Module) -> None:
    """Replace every batch norm in place by one over all processes; parameters and names stay."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d | nn.BatchNorm3d):
                synced = SyncedBatchNorm(child.num_features, child.eps, child.momentum)
                synced.weight, synced.bias = child.weight, child.bias
                for key, buffer in child.named_buffers():
                    setattr(synced, key, buffer)
                synced.train(child.training)
                setattr(module, name, synced)
