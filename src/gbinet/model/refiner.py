"""A last correction of the smoothed depth, learned: what a mean over neighbours cannot know.

How far to smooth depends on the place (a plain wall far, a relief hardly), and a mean flattens curvature. A
small network of 2D convolutions at full size looks at the answers as they are and at three smoothings of
them, at the confidence and at the reference's features; it mixes the four and adds a correction of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbinet.model.layers import add_into
from gbinet.model.shares import shares
from gbinet.model.smoothing import smoothed

CANDIDATES = 4
DILATIONS = (2, 4, 8)


def candidates(place: Tensor, smooth: Tensor, radius: int, reach: float) -> Tensor:
    """Answers in cells [B, h, w] and their smoothing [B, h, w] -> from raw to smoothest, [B, 4, h, w]."""
    less = smoothed(place, max(radius // 2, 1), reach)
    return torch.stack([place, less, smooth, smoothed(smooth, radius, reach)], dim=1)


class Refiner(nn.Module):
    """Continuous answers from candidates. New ones take the candidates' mean."""

    def __init__(self, channels: int, width: int = 16) -> None:
        super().__init__()
        inputs = (CANDIDATES - 1) + (CANDIDATES - 2) + 2 + channels
        self.entry = nn.Conv2d(inputs, width, 3, padding=1)
        self.spread = nn.ModuleList(nn.Conv2d(width, width, 3, padding=d, dilation=d) for d in DILATIONS)
        self.output = nn.Conv2d(width, CANDIDATES + 1, 3, padding=1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)  # type: ignore[arg-type]  # this one has a bias

    def forward(
        self,
        places: Tensor,  # [B, 4, h, w] float32, in cells
        sure: Tensor,  # [B, 2, h, w]: of the last stage, of all stages
        reference: Tensor,  # [B, C, h, w] features
    ) -> Tensor:  # [B, h, w] float32, in cells
        hidden = self.entry(self._inputs(places, sure, reference)).relu_()
        for layer in self.spread:
            hidden = add_into(layer(hidden).relu_(), hidden)
        said = self.output(hidden).float()  # [B, 5, h, w]
        del hidden
        share = shares(said[:, :CANDIDATES])
        # Differences to the first, not places: of thousands of cells float32 keeps few digits.
        mixed = (share * (places - places[:, :1])).sum(1)
        refined: Tensor = places[:, 0] + mixed + said[:, CANDIDATES]
        return refined

    def _inputs(self, places: Tensor, sure: Tensor, reference: Tensor) -> Tensor:
        """All inputs side by side, [B, I, h, w], channels last; written in place, so that they exist once."""
        batch, _, height, width = places.shape
        weight = self.entry.weight
        size = (batch, weight.shape[1], height, width)
        inputs = torch.empty(
            size, dtype=weight.dtype, device=places.device, memory_format=torch.channels_last
        )
        at = 0
        for i in range(1, CANDIDATES):  # saturating: where something is wrong it does not matter how much
            inputs[:, at] = torch.tanh((places[:, i] - places[:, 0]) / 4)
            at += 1
        for i in range(2, CANDIDATES):
            inputs[:, at] = torch.tanh(places[:, i] - places[:, i - 1])
            at += 1
        inputs[:, at : at + 2] = sure
        inputs[:, at + 2 :] = reference
        return inputs
