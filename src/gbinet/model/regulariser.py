"""The 3D U-Net that turns a cost volume into one logit per hypothesis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet.model.layers import Conv2d, Conv3d, ConvBlock2d, ConvBlock3d, UpBlock3d

MULTIPLE = 8  # the U-Net halves height and width three times


class Regulariser(nn.Module):
    """Three levels down and up, strides in space only, skip connections added after the ReLU."""

    def __init__(self, groups: int, width: int = 8, context: int = 0) -> None:
        """context: channels of the reference's features, if the network sees them; 0 = it does not."""
        super().__init__()
        w = width
        self.entry = ConvBlock3d(groups, w)
        self.context: nn.Sequential | None = None
        if context:
            self.context = nn.Sequential(ConvBlock2d(context, 2 * w), Conv2d(2 * w, w, 3, padding=1))
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
        return self.other_layers(self.first_layer(volume, reference), height, width)

    def first_layer(self, volume: Tensor, reference: Tensor | None = None) -> Tensor:
        """[B, G, D, H, W] -> [B, C, D, H', W']. The volume is not needed after it and can be freed."""
        height, width = volume.shape[-2:]
        padding = (0, -width % MULTIPLE, 0, -height % MULTIPLE)
        if any(padding):
            volume = F.pad(volume, padding)
        if volume.device.type == "cpu":  # oneDNN's layout; bfloat16 where inference/prepare.py chose it
            dtype = self.logit.weight.dtype
            volume = volume.to(dtype, memory_format=torch.channels_last_3d)
            reference = None if reference is None else reference.to(dtype)
        hidden: Tensor = self.entry(volume, skip=self._context(reference, padding))
        return hidden

    def _context(self, reference: Tensor | None, padding: tuple[int, ...]) -> Tensor | None:
        """What the reference's features add to all planes, [B, C, 1, H', W']."""
        if self.context is None:
            return None
        assert reference is not None
        added: Tensor = self.context(reference)
        return (F.pad(added, padding) if any(padding) else added)[:, :, None]

    def other_layers(self, hidden: Tensor, height: int, width: int) -> Tensor:
        """The first layer's result, which may be overwritten -> logits [B, D, height, width]."""
        skips = [hidden]
        for block in self.down:
            skips.append(block(skips[-1]))
        current = skips.pop()
        for block in self.up:
            current = block(current, skips.pop())
        logits: Tensor = self.logit(current)[:, 0]
        return logits[..., :height, :width]
