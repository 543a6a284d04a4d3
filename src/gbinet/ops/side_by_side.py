"""Maps side by side as the channels of one, which 2D convolutions read fastest channels last."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def side_by_side(parts: Iterable[Tensor], like: Tensor, channels: int) -> Tensor:
    """Maps [B, C_i, h, w] -> [B, channels, h, w] in the type of `like` [B, C, h, w], channels last;
    remaining channels are zero."""
    batch, _, height, width = like.shape
    if torch.is_grad_enabled():  # backwards, every part written in place would copy the whole
        last = [part.to(like.dtype).permute(0, 2, 3, 1) for part in parts]
        missing = channels - sum(part.shape[3] for part in last)
        last.append(like.new_zeros(batch, height, width, missing))
        return torch.cat(last, dim=3).permute(0, 3, 1, 2)
    # Written in place, so that they exist once.
    target = like.new_empty(batch, height, width, channels).permute(0, 3, 1, 2)
    at = 0
    for part in parts:
        target[:, at : at + part.shape[1]] = part
        at += part.shape[1]
    target[:, at:].zero_()
    return target
