"""Between two scales every pixel chooses its parent: tolerance in space, as the bins give it in depth.

A coarse pixel at a silhouette has one depth, and the finer pixels below it belong to two. Each of them may
descend from its own coarse cell or from the nearest or the farthest one around. A small network compares how
well these match in the source views, and looks at the picture to tell which side a pixel is on. Between two
stages of one scale they may choose again: a silhouette that came out a pixel off can still move.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gbinet.model.layers import ConvBlock2d, PlanarConv2d
from gbinet.model.search import PARENTS
from gbinet.ops.beside import beside
from gbinet.ops.shares import shares

DILATIONS = (1, 2, 4)
SAME = 1  # cells: parents no further apart lead to the same answer


@dataclass(frozen=True)
class Choice:
    """The parents of every pixel and what the network says of them."""

    cells: Tensor  # [B, PARENTS, H, W] int32
    logits: Tensor  # [B, PARENTS, H, W]

    @property
    def best(self) -> Tensor:
        """Index of the chosen parent, [B, H, W]."""
        return self.logits.detach().max(1).indices

    @property
    def confidence(self) -> Tensor:
        """Probability of the chosen parent and of those in the same cell or next to it, [B, 1, H, W]."""
        chosen = self.cells.gather(1, self.best[:, None])
        same = (self.cells - chosen).abs() <= SAME
        return torch.where(same, shares(self.logits.float()), 0.0).sum(1, keepdim=True).clamp(max=1.0)


def differences(cells: Tensor) -> Tensor:
    """How far the other parents are from a pixel's own, [B, PARENTS - 1, H, W] in (-1, 1): saturating."""
    return torch.tanh((cells[:, 1:] - cells[:, :1]).float() / 4)


class Chooser(nn.Module):
    """One logit per parent. A new one prefers a pixel's own."""

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
        away = differences(cells).to(reference.dtype)
        matches = volume.transpose(1, 2).flatten(1, 2).to(reference.dtype)  # [B, PARENTS * G, H, W]
        hidden = self.entry(beside(matches, reference, away))
        for layer in self.spread:
            hidden = layer(hidden, skip=hidden)
        logits: Tensor = self.output(hidden)
        return logits
