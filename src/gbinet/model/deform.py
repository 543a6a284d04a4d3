"""3x3 deformable convolution (version 1: offsets, no modulation) in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import kernels
from gbinet.camera import pixel_centres


def deform_conv2d(
    features: Tensor,  # [B, C, H, W]
    offsets: Tensor,  # [B, 18, H, W]: (dy, dx) per tap, taps in row-major order
    weight: Tensor,  # [O, C, 3, 3]
) -> Tensor:  # [B, O, H, W]
    """Sample at nine displaced positions per pixel (bilinear, zero outside) and convolve."""
    if kernels.usable(features):
        from gbinet.kernels import deform as fast

        return fast.deform_conv2d(features, offsets, weight)
    return deform_conv2d_plain(features, offsets, weight)


def deform_conv2d_plain(features: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """The reference: tap by tap.

    One tap's samples exist at a time, so inference never holds nine copies of the map. Positions are float32
    (or float64 for float64 features) whatever the type of the features.
    """
    height, width = features.shape[-2:]
    exact = torch.promote_types(offsets.dtype, torch.float32)
    x, y = pixel_centres(height, width, device=features.device, dtype=exact).unbind(-1)  # [H, W] each
    output: Tensor | None = None
    for tap in range(9):
        dy, dx = tap // 3 - 1, tap % 3 - 1
        across = (x + dx + offsets[:, 2 * tap + 1]) * (2 / width) - 1  # -1, 1: left and right border
        down = (y + dy + offsets[:, 2 * tap]) * (2 / height) - 1
        sampled = sample(features, torch.stack([across, down], dim=-1))  # [B, C, H, W]
        term = F.conv2d(sampled, weight[:, :, tap // 3, tap % 3, None, None])
        output = term if output is None else output + term
    assert output is not None
    return output


def sample(features: Tensor, grid: Tensor) -> Tensor:
    """Bilinear sampling, zero outside, with float32 positions for features of any type.

    features [B, C, H, W], grid [B, h, w, 2] in [-1, 1] -> [B, C, h, w] in the features' type.
    """
    if features.dtype == grid.dtype:
        return F.grid_sample(features, grid, "bilinear", "zeros", align_corners=False)
    wide = F.grid_sample(features.to(grid.dtype), grid, "bilinear", "zeros", align_corners=False)
    return wide.to(features.dtype)


class DeformConv2d(nn.Module):
    """Deformable convolution with its own offset predictor (a plain 3x3 convolution that starts at zero)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        self.offset = nn.Conv2d(inputs, 18, 3, padding=1)
        nn.init.zeros_(self.offset.weight)
        assert self.offset.bias is not None
        nn.init.zeros_(self.offset.bias)

    def forward(self, features: Tensor) -> Tensor:  # [B, C, H, W] -> [B, O, H, W]
        return deform_conv2d(features, self.offset(features), self.weight)
