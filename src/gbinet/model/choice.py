"""Between two scales every pixel chooses its parent: tolerance in space, as tolerance bins are in depth.

A coarse pixel at a silhouette has one depth, but the finer pixels inside it have two. Each of them may
descend from its own coarse cell, or from the nearest or the farthest one around it. A small network compares
how well these match in the source views, and sees the reference's features to tell which side a pixel is on.
Between two stages of one scale pixels may choose again, so that a silhouette that is a pixel off can still
move.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gbinet.model.layers import ConvBlock2d, PlanarConv2d
from gbinet.model.search import PARENTS
from gbinet.ops import parents

DILATIONS = (1, 2, 4)


@dataclass(frozen=True)
class Choice:
    """The parents of every pixel, and the network's logits for them."""

    cells: Tensor  # [B, PARENTS, H, W] int32
    logits: Tensor  # [B, PARENTS, H, W]

    @functools.cached_property
    def _outcome(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return parents.chosen(self.cells, self.logits)

    @property
    def cell(self) -> Tensor:
        """The chosen parents, [B, H, W]."""
        return self._outcome[0]

    @property
    def confidence(self) -> Tensor:
        """Probability of the chosen parent and of those in the same cell or next to it, [B, 1, H, W]."""
        if self.logits.requires_grad and torch.is_grad_enabled():
            return parents.chosen(self.cells, self.logits)[1]
        return self._outcome[1]


class Chooser(nn.Module):
    """The network that gives one logit per parent. Initialised to prefer a pixel's own."""

    def __init__(self, channels: int, groups: int, width: int) -> None:
        super().__init__()
        self.entry = ConvBlock2d(PARENTS * groups + channels + PARENTS - 1, width)
        self.spread = nn.ModuleList(ConvBlock2d(width, width, dilation=d) for d in DILATIONS)
        self.output = PlanarConv2d(width, PARENTS, 1)
        assert self.output.bias is not None
        nn.init.zeros_(self.output.weight)
        with torch.no_grad():
            self.output.bias.copy_(torch.tensor([1.0] + [0.0] * (PARENTS - 1)))

    def forward(
        self,
        volume: Tensor,  # [B, G, PARENTS, H, W]: how well each parent's depth matches
        reference: Tensor,  # [B, C, H, W] features
        cells: Tensor,  # [B, PARENTS, H, W]
    ) -> Tensor:  # [B, PARENTS, H, W]
        hidden = self.entry(parents.inputs(volume, reference, cells))
        for layer in self.spread:
            hidden = layer(hidden, skip=hidden)
        logits: Tensor = self.output(hidden)
        return logits
