"""Bilinear sampling of maps, zero outside."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def sample(features: Tensor, grid: Tensor) -> Tensor:
    """With float32 positions for features of any type; their kernels sample on the fly (bilinear_triton.py).

    features [B, C, H, W], grid [B, h, w, 2] in [-1, 1] -> [B, C, h, w] in the features' type.
    """
    if features.dtype == grid.dtype:
        return F.grid_sample(features, grid, "bilinear", "zeros", align_corners=False)
    wide = F.grid_sample(features.to(grid.dtype), grid, "bilinear", "zeros", align_corners=False)
    return wide.to(features.dtype)
