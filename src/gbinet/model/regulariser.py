"""The 3D U-Net that turns a cost volume into one logit per hypothesis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet.model.layers import Conv3d, ConvBlock2d, ConvBlock3d, UpBlock3d, add_into

MULTIPLE = 8  # the U-Net halves height and width three times


class Regulariser(nn.Module):
    """Three levels down and up, strides in space only, skip connections added after the ReLU."""

    def __init__(self, groups: int, width: int = 8, context: int = 0) -> None:
        """context: channels of the reference's features, which then add to the first layer; 0 = none."""
        super().__init__()
        w = width
        self.entry = ConvBlock3d(groups, w)
        self.context: nn.Sequential | None = None
        if context:
            self.context = nn.Sequential(ConvBlock2d(context, 2 * w), nn.Conv2d(2 * w, w, 3, padding=1))
        self.down = nn.ModuleList(
            nn.Sequential(ConvBlock3d(c, 2 * c, stride=2), ConvBlock3d(2 * c, 2 * c))
            for c in (w, 2 * w, 4 * w)
        )
        self.up = nn.ModuleList(UpBlock3d(2 * c, c) for c in (4 * w, 2 * w, w))
        self.logit = Conv3d(w, 1, 3, padding=1, bias=False)

    def forward(
        self,
        volume: Tensor,  # [B, G, D, H, W]
        reference: Tensor | None = None,  # [B, C, H, W] features, for the context
    ) -> Tensor:  # logits [B, D, H, W]
        """Any height and width: padded with zeros (as the convolutions do) and cropped back."""
        height, width = volume.shape[-2:]
        pad_height, pad_width = -height % MULTIPLE, -width % MULTIPLE
        if pad_height or pad_width:
            volume = F.pad(volume, (0, pad_width, 0, pad_height))
        if volume.device.type == "cpu":  # the layout that oneDNN works in
            volume = volume.contiguous(memory_format=torch.channels_last_3d)
        entered = self.entry(volume)
        if self.context is not None:
            assert reference is not None
            seen = self.context(reference)[:, :, None]  # [B, w, 1, H, W]
            entered = add_into(entered, F.pad(seen, (0, pad_width, 0, pad_height)))
        skips = [entered]
        for block in self.down:
            skips.append(block(skips[-1]))
        current = skips.pop()
        for block in self.up:
            current = add_into(block(current), skips.pop())
        logits: Tensor = self.logit(current)[:, 0]
        return logits[..., :height, :width]
