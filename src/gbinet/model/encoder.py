"""Image encoder: a feature pyramid of four scales, shared by all views."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet.model.deform import DeformConv2d
from gbinet.model.layers import ConvBlock2d, add_into

SCALES = (8, 4, 2, 1)  # image size / feature size, coarse to fine: the order of all outputs


class FeaturePyramid(nn.Module):
    """Bottom-up convolutions, one merge per finer scale, and an output convolution per scale.

    Each merge takes the bottom-up map of the next coarser scale (not the merged one), as published.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        w = width
        self.bottom_up = nn.ModuleList([nn.Sequential(ConvBlock2d(3, w), ConvBlock2d(w, w))])
        for inputs in (w, 2 * w, 4 * w):
            outputs = 2 * inputs
            blocks = [ConvBlock2d(inputs, outputs, 5, stride=2), ConvBlock2d(outputs, outputs)]
            self.bottom_up.append(nn.Sequential(*blocks, ConvBlock2d(outputs, outputs)))
        # Index 0 = coarsest scale in both lists below; the coarsest scale has nothing to merge.
        self.lateral = nn.ModuleList(nn.Conv2d(c, 2 * c, 1) for c in (4 * w, 2 * w, w))
        channels = ((8 * w, 8 * w), (8 * w, 4 * w), (4 * w, 2 * w), (2 * w, w))
        self.output = nn.ModuleList(DeformConv2d(i, o) for i, o in channels)
        self.channels = tuple(o for _, o in channels)  # per scale, coarse to fine

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Normalised images [N, 3, H, W], sizes multiples of 8 -> maps [N, C_s, H/s, W/s] for s = 8 4 2 1."""
        return self.expand(self.contract(images))

    def contract(self, images: Tensor) -> list[Tensor]:
        """The bottom-up maps, fine to coarse. All that batch norm is in: images of a batch see each other."""
        bottom_up = []
        current = images
        for block in self.bottom_up:
            current = block(current)
            bottom_up.append(current)
        return bottom_up

    def expand(self, bottom_up: Sequence[Tensor], scales: Sequence[int] = range(4)) -> tuple[Tensor, ...]:
        """The outputs of these scales (rising, 0 = coarsest) from bottom-up maps. Every image by itself."""
        return tuple(self.output[scale](self._merged(bottom_up, scale)) for scale in scales)

    def _merged(self, bottom_up: Sequence[Tensor], scale: int) -> Tensor:
        """What the output convolution of a scale reads."""
        if scale == 0:
            return bottom_up[3]
        coarser, own = bottom_up[4 - scale], bottom_up[3 - scale]
        lateral: Tensor = self.lateral[scale - 1](own)
        kind = "cpu" if coarser.is_meta else coarser.device.type
        with torch.autocast(kind, enabled=False):  # it would widen the map to float32
            upsampled = F.interpolate(coarser, scale_factor=2, mode="bilinear", align_corners=False)
        return add_into(lateral, upsampled)
