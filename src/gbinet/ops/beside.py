"""Maps side by side as the channels of one."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet import ops

ALIGNED = 8  # channels: rows of so many are read fastest


def beside(*maps: Tensor) -> Tensor:
    """Maps [B, C_i, H, W] -> [B, sum of C_i, H, W].

    For the kernels channels last, and filled up with zeros to a multiple of 8 channels.
    """
    if torch.is_grad_enabled() or not ops.usable(*maps):
        return torch.cat(maps, dim=1)
    batch, _, height, width = maps[0].shape
    channels = sum(m.shape[1] for m in maps)
    output = maps[0].new_empty(batch, height, width, -(-channels // ALIGNED) * ALIGNED)
    at = 0
    for part in maps:
        output[..., at : at + part.shape[1]] = part.permute(0, 2, 3, 1)
        at += part.shape[1]
    output[..., at:] = 0
    return output.permute(0, 3, 1, 2)
