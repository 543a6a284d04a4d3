"""The 3D U-Net that turns a cost volume into one logit per hypothesis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet.model.layers import Conv3d, ConvBlock3d, UpBlock3d, add_into

MULTIPLE = 8  # the U-Net halves height and width three times


class Regulariser(nn.Module):
    """Three levels down and up, strides in space only, skip connections added after the ReLU."""

    def __init__(self, groups: int, width: int = 8) -> None:
        super().__init__()
        w = width
        self.entry = ConvBlock3d(groups, w)
        self.down = nn.ModuleList(
            nn.Sequential(ConvBlock3d(c, 2 * c, stride=2), ConvBlock3d(2 * c, 2 * c))
            for c in (w, 2 * w, 4 * w)
        )
        self.up = nn.ModuleList(UpBlock3d(2 * c, c) for c in (4 * w, 2 * w, w))
        self.logit = Conv3d(w, 1, 3, padding=1, bias=False)

    def forward(self, volume: Tensor) -> Tensor:  # [B, G, D, H, W] -> logits [B, D, H, W]
        """Any height and width: padded with zeros (as the convolutions do) and cropped back."""
        height, width = volume.shape[-2:]
        pad_height, pad_width = -height % MULTIPLE, -width % MULTIPLE
        if pad_height or pad_width:
            volume = F.pad(volume, (0, pad_width, 0, pad_height))
        if volume.device.type == "cpu":  # the layout that oneDNN works in
            volume = volume.contiguous(memory_format=torch.channels_last_3d)
        skips = [self.entry(volume)]
        for block in self.down:
            skips.append(block(skips[-1]))
        current = skips.pop()
        for block in self.up:
            current = add_into(block(current), skips.pop())
        logits: Tensor = self.logit(current)[:, 0]
        return logits[..., :height, :width]
