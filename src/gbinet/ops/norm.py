"""Batch norm followed by ReLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.layout import channels_last


def norm_relu(values: Tensor, norm: nn.Module) -> Tensor:
    """relu(norm(values)), [B, C, ...]; in training with the statistics of `values`."""
    if norm.training and ops.usable(values) and suits(norm):
        return norm_relu_fast(values, norm)
    return norm_relu_plain(values, norm)


def norm_relu_plain(values: Tensor, norm: nn.Module) -> Tensor:
    """The reference of norm_relu."""
    return F.relu_(norm(values))


def suits(norm: nn.Module) -> bool:
    """Whether there are kernels: for batch norms of one process in training, a power of two channels."""
    if not isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d) or not norm.training:
        return False
    channels = norm.num_features
    complete = norm.affine and norm.track_running_stats and norm.momentum is not None
    return complete and channels & (channels - 1) == 0 and channels <= 256


def norm_relu_fast(values: Tensor, norm: nn.Module) -> Tensor:
    """norm_relu by the kernels; running statistics are updated too."""
    from gbinet.ops.norm_triton import NormRelu

    assert isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d)
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.num_batches_tracked is not None
    result: Tensor = NormRelu.apply(  # type: ignore[no-untyped-call]
        channels_last(values), norm.weight, norm.bias, norm.running_mean, norm.running_var,
        norm.num_batches_tracked, norm.momentum, norm.eps,
    )  # fmt: skip
    return result
