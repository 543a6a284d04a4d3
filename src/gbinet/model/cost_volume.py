"""The view-weight network: how reliable each source view is. ops/cost_volume.py weighs the views with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbinet.model.layers import ConvBlock3d
from gbinet.ops.bins import Bins
from gbinet.ops.cost_volume import Maps, cost_volume
from gbinet.ops.view_weight import pack


class ViewWeight(nn.Module):
    """The weight of a source view at each pixel, from its correlation volume."""

    packed: tuple[Tensor, Tensor] | None = None

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.hidden = nn.Sequential(ConvBlock3d(groups, 16, kernel=1), ConvBlock3d(16, 8, kernel=1))
        self.output = nn.Conv3d(8, 1, 1)

    def pack(self, dtype: torch.dtype) -> None:
        self.packed = pack(self, dtype)

    def forward(self, volume: Tensor) -> Tensor:  # [B, G, D, H, W] -> [B, 1, 1, H, W] in (0, 1)
        score: Tensor = self.output(self.hidden(volume))
        return score.float().sigmoid().amax(2, keepdim=True)

    def cost_volume(self, maps: Maps, transforms: Tensor, hypotheses: Bins | Tensor, scale: int) -> Tensor:
        """The volume [B, G, D, h, w] over all source views; scale: image size / feature size."""
        return cost_volume(maps, transforms, hypotheses, self, self.groups, scale, self.packed)
