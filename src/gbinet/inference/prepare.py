"""A network made ready for inference: batch norms folded, half precision, packed for the kernels."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from gbinet.model.cost_volume import ViewWeight
from gbinet.model.gbinet import GBiNet
from gbinet.model.layers import Block, pack
from gbinet.ops.layout import CHANNELS_LAST, channels_last

Network = TypeVar("Network", bound=GBiNet)
Module = TypeVar("Module", bound=nn.Module)


def prepare(
    model: Network,
    device: torch.device | str,
    dtype: torch.dtype | None = None,  # None: float16 on CUDA, float32 elsewhere
) -> Network:
    """A copy of the same class, faster and smaller, with the same depth up to rounding.

    It can be neither trained nor saved. Geometry stays in float32. On a CPU, bfloat16 is used in the 3D
    U-Nets only, which are most of the work: in the features it would cost accuracy.
    """
    device = torch.device(device)
    dtype = dtype or (torch.float16 if device.type == "cuda" else torch.float32)
    ready = fold_batch_norms(model).to(device)
    for module in ready.modules():
        if isinstance(module, ViewWeight):  # before the conversion: its biases stay float32
            module.pack(dtype)
    if device.type == "cpu" and dtype == torch.bfloat16:
        ready.regularisers.to(dtype)
    else:
        ready = ready.to(dtype)
    if device.type == "cuda":
        for parameter in ready.parameters():
            if parameter.dim() in CHANNELS_LAST:
                parameter.data = channels_last(parameter.data)
    pack(ready)
    ready.ready = True
    return ready


def fold_batch_norms(model: Module) -> Module:
    """A copy in eval mode with batch norms merged into convolutions: fewer passes over memory."""
    folded = copy.deepcopy(model).eval()
    for module in folded.modules():
        if isinstance(module, Block):
            module.fold()
    return folded.requires_grad_(False)


def is_packed(network: nn.Module) -> bool:
    """Whether a network uses the fused kernels."""
    return any(getattr(module, "packed", None) is not None for module in network.modules())
