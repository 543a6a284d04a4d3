"""Layouts in memory that kernels, cuDNN and oneDNN read fastest: the channels of a pixel side by side."""

from __future__ import annotations

import torch
from torch import Tensor

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by number of axes


def channels_last(values: Tensor) -> Tensor:
    """[B, C, H, W] or [B, C, D, H, W] as it is, but channels last in memory; no copy if it is already."""
    return values.contiguous(memory_format=CHANNELS_LAST[values.dim()])


def pixel_rows(features: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, H, W, C] whose images are contiguous; batches may lie apart (one view of many)."""
    rows = features.permute(0, 2, 3, 1)
    return rows if rows[0].is_contiguous() else rows.contiguous()


def voxel_rows(volume: Tensor) -> Tensor:
    """[B, C, D, H, W] -> [B, D, H, W, C], contiguous; no copy if the volume is channels last."""
    return volume.permute(0, 2, 3, 4, 1).contiguous()
