"""Concatenation of maps along their channels, channels last: 2D convolutions read that fastest."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def concat_channels(maps: Iterable[Tensor], like: Tensor, channels: int) -> Tensor:
    """Maps [B, C_i, h, w] -> [B, channels, h, w] in the type of `like` [B, C, h, w], channels last;
    remaining channels are zero."""
    batch, _, height, width = like.shape
    if torch.is_grad_enabled():  # backwards, every map written in place would copy the whole
        rows = [m.to(like.dtype).permute(0, 2, 3, 1) for m in maps]
        missing = channels - sum(r.shape[3] for r in rows)
        rows.append(like.new_zeros(batch, height, width, missing))
        return torch.cat(rows, dim=3).permute(0, 3, 1, 2)
    # Written in place: each map exists once, and a generator makes one at a time.
    result = like.new_empty(batch, height, width, channels).permute(0, 3, 1, 2)
    start = 0
    for m in maps:
        result[:, start : start + m.shape[1]] = m
        start += m.shape[1]
    result[:, start:].zero_()
    return result
