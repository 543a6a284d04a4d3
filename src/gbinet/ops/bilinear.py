"""Bilinear sampling of maps, zero outside."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def sample(features: Tensor, grid: Tensor) -> Tensor:
    """Features of any type at positions of float32 or more. (Kernels sample by bilinear_triton.py.)

    features [B, C, H, W], grid [B, h, w, 2] in [-1, 1] -> [B, C, h, w] in the features' type.
    """
    if features.dtype == grid.dtype:
        return F.grid_sample(features, grid, "bilinear", "zeros", align_corners=False)
    exact = F.grid_sample(features.to(grid.dtype), grid, "bilinear", "zeros", align_corners=False)
    return exact.to(features.dtype)
