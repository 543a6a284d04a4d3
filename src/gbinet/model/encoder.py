"""Image encoder: a feature pyramid, shared by all views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from gbinet.model.layers import Conv2d, ConvBlock2d, DeformConv2d
from gbinet.ops.merge import merge


class FeaturePyramid(nn.Module):
    """Bottom-up convolutions, one merge per finer scale, and an output convolution per scale.

    Each merge takes the bottom-up map of the next coarser scale (not the merged one), as published.
    """

    def __init__(self, channels: tuple[int, ...]) -> None:
        """channels: of the maps and outputs, coarse to fine, each twice as large as the one before."""
        super().__init__()
        self.channels = channels
        finest = channels[-1]
        self.bottom_up = nn.ModuleList([nn.Sequential(ConvBlock2d(3, finest), ConvBlock2d(finest, finest))])
        pairs = list(pairwise(channels))  # of a scale and the next finer one
        for outputs, inputs in reversed(pairs):
            blocks = [ConvBlock2d(inputs, outputs, 5, stride=2), ConvBlock2d(outputs, outputs)]
            self.bottom_up.append(nn.Sequential(*blocks, ConvBlock2d(outputs, outputs)))
        # Index 0 = coarsest scale in both lists below; the coarsest scale has nothing to merge.
        self.lateral = nn.ModuleList(Conv2d(fine, coarse, 1) for coarse, fine in pairs)
        self.output = nn.ModuleList(DeformConv2d(i, o) for i, o in [(channels[0], channels[0]), *pairs])

    def forward(self, images: Tensor, out: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        """Normalised images [N, 3, H, W], multiples of the coarsest scale -> maps [N, C_s, H / s, W / s]."""
        return self.expand(self.contract(images), out=out, release=True)

    def contract(self, current: Tensor) -> list[Tensor]:
        """The bottom-up maps, fine to coarse. All batch norms are here: images affect each other."""
        bottom_up = []
        for block in self.bottom_up:
            current = block(current)
            bottom_up.append(current)
        return bottom_up

    def expand(
        self,
        bottom_up: list[Tensor],
        scales: Sequence[int] | None = None,  # rising, 0 = coarsest; all, if none are given
        out: Sequence[Tensor] | None = None,  # a map per scale to write to
        release: bool = False,  # remove bottom-up maps from the list when they are not needed any more
    ) -> tuple[Tensor, ...]:
        """The output maps of some scales from bottom-up maps. Images do not affect each other."""
        count, outputs = len(self.channels), []
        for scale in range(count) if scales is None else scales:
            level = count - 1 - scale
            merged = bottom_up[level]
            if scale:
                lateral = self.lateral[scale - 1]
                assert isinstance(lateral, Conv2d)
                merged = merge(bottom_up[level], bottom_up[level + 1], lateral, lateral.packed)
            if release and scale:
                del bottom_up[level + 1 if level else 0 :]
            outputs.append(self.output[scale](merged, None if out is None else out[scale]))
            del merged  # before the next, larger one is made
        return tuple(outputs)
