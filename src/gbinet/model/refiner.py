"""A last correction of the smoothed depth, learned: what a mean over neighbours cannot know.

How far to smooth depends on the place (a plain wall far, a relief hardly), and a mean flattens curvature. A
small network of 2D convolutions at full size looks at the answers as they are and at three smoothings of
them, at the confidence and at the reference's features; it mixes the four and adds a correction of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
        dtype = self.entry.weight.dtype
        from_raw = torch.tanh((places[:, 1:] - places[:, :1]) / 4)  # saturates where something is wrong
        between = torch.tanh(places[:, 2:] - places[:, 1:-1])
        inputs = [from_raw.to(dtype), between.to(dtype), sure.to(dtype), reference.to(dtype)]
        seen = torch.cat(inputs, dim=1).contiguous(memory_format=torch.channels_last)
        hidden = self.entry(seen).relu_()
        for layer in self.spread:
            hidden = hidden + layer(hidden).relu_()
        said = self.output(hidden).float()  # [B, 5, h, w]
        share = said[:, :CANDIDATES].softmax(1)
        # Differences to the first, not places: of thousands of cells float32 keeps few digits.
        mixed = (share * (places - places[:, :1])).sum(1)
        refined: Tensor = places[:, 0] + mixed + said[:, CANDIDATES]
        return refined
