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
        """context: channels of the reference's features, which then add to the first layer; 0 = none."""
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
        return self.leave(self.enter(volume, reference), height, width)

    def enter(self, volume: Tensor, reference: Tensor | None = None) -> Tensor:
        """The first layer, [B, G, D, H, W] -> [B, C, D, H', W']; after it nobody needs the volume."""
        height, width = volume.shape[-2:]
        padding = (0, -width % MULTIPLE, 0, -height % MULTIPLE)
        if any(padding):
            volume = F.pad(volume, padding)
        if volume.device.type == "cpu":  # in oneDNN's layout, and type: see inference/prepare.py
            kind = self.logit.weight.dtype
            volume = volume.to(kind, memory_format=torch.channels_last_3d)
            reference = None if reference is None else reference.to(kind)
        entered: Tensor = self.entry(volume, skip=self._context(reference, padding))
        return entered

    def _context(self, reference: Tensor | None, padding: tuple[int, ...]) -> Tensor | None:
        """What the picture adds to all planes, [B, C, 1, H', W']."""
        if self.context is None:
            return None
        assert reference is not None
        added: Tensor = self.context(reference)
        return (F.pad(added, padding) if any(padding) else added)[:, :, None]

    def leave(self, entered: Tensor, height: int, width: int) -> Tensor:
        """All other layers, to logits [B, D, height, width]. What was entered may be overwritten."""
        skips = [entered]
        for block in self.down:
            skips.append(block(skips[-1]))
        current = skips.pop()
        for block in self.up:
            current = block(current, skips.pop())
        logits: Tensor = self.logit(current)[:, 0]
        return logits[..., :height, :width]
