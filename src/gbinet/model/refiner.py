"""A last correction of the smoothed depth, learned: what a mean over neighbours cannot know.

How far to smooth depends on the place (a plain wall far, a relief hardly), and a mean flattens curvature. A
small network of 2D convolutions at full size looks at the answers as they are and at three smoothings of
them, at the confidence and at the reference's features; it mixes the four and adds a correction of its own.
With `sides` it may also take the nearest or the farthest answer around: at a silhouette, the other side's.
With `confidence` it also says how likely its answer is right to one pixel of reprojection.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbinet.model.layers import Conv2d, PlanarConv2d
from gbinet.model.search import nearest_and_farthest
from gbinet.ops.beside import ALIGNED
from gbinet.ops.shares import shares
from gbinet.ops.smooth import smoothed

SMOOTHINGS = 4  # from none to the strongest
SIDES = 2
SIDE_REACH = 2  # px around, for the other side of an edge
DILATIONS = (2, 4, 8)


def candidates(place: Tensor, smooth: Tensor, radius: int, reach: float, sides: bool = False) -> Tensor:
    """Answers in cells [B, h, w] and their smoothing [B, h, w] -> from raw to smoothest, then the nearest and
    the farthest around, if asked for: [B, 4 or 6, h, w]."""
    less = smoothed(place, max(radius // 2, 1), reach)
    answers = torch.stack([place, less, smooth, smoothed(smooth, radius, reach)], dim=1)
    return torch.cat([answers, nearest_and_farthest(smooth, SIDE_REACH)], dim=1) if sides else answers


class Refiner(nn.Module):
    """Continuous answers from candidates. New ones take the candidates' mean."""

    def __init__(self, channels: int, width: int = 16, sides: bool = False, confidence: bool = False) -> None:
        super().__init__()
        self.candidates = SMOOTHINGS + SIDES * sides
        inputs = (self.candidates - 1) + (SMOOTHINGS - 2) + SIDES * sides + 2 + channels
        self.entry = Conv2d(inputs, width, 3, padding=1)
        self.spread = nn.ModuleList(Conv2d(width, width, 3, padding=d, dilation=d) for d in DILATIONS)
        self.output = PlanarConv2d(width, self.candidates + 1 + confidence, 3, padding=1)
        nn.init.zeros_(self.output.weight)
        assert self.output.bias is not None
        nn.init.zeros_(self.output.bias)
        with torch.no_grad():
            self.output.bias[SMOOTHINGS : self.candidates] = -4.0  # a new one leaves the sides alone

    def forward(
        self,
        places: Tensor,  # [B, 4 or 6, h, w] float32, in cells
        sure: Tensor,  # [B, 2, h, w]: of the last stage, of all stages
        reference: Tensor,  # [B, C, h, w] features
    ) -> tuple[Tensor, Tensor | None]:  # [B, h, w] float32, in cells; logit of the confidence [B, 1, h, w]
        hidden = self.entry(self._inputs(places, sure, reference), relu=True)
        for layer in self.spread:
            hidden = layer(hidden, relu=True, skip=hidden)
        said = self.output(hidden).float()  # [B, candidates + 1 (+ 1), h, w]
        del hidden
        share = shares(said[:, : self.candidates])
        # Differences to the first, not places: of thousands of cells float32 keeps few digits.
        mixed = (share * (places - places[:, :1])).sum(1)
        refined: Tensor = places[:, 0] + mixed + said[:, self.candidates]
        logit = said[:, self.candidates + 1 :]
        return refined, logit if logit.shape[1] else None

    def _inputs(self, places: Tensor, sure: Tensor, reference: Tensor) -> Tensor:
        """All inputs side by side, [B, I, h, w], channels last; written in place, so that they exist once."""
        batch, _, height, width = places.shape
        weight, count = self.entry.weight, self.entry.in_channels
        filled = -(-count // ALIGNED) * ALIGNED if self.entry.packed else count
        inputs = weight.new_empty((batch, height, width, filled)).permute(0, 3, 1, 2)  # channels last
        inputs[:, count:].zero_()
        at = 0
        for i in range(1, self.candidates):  # saturating: how wrong something is does not matter
            inputs[:, at] = torch.tanh((places[:, i] - places[:, 0]) / 4)
            at += 1
        for i in range(2, SMOOTHINGS):
            inputs[:, at] = torch.tanh(places[:, i] - places[:, i - 1])
            at += 1
        for i in range(SMOOTHINGS, self.candidates):
            inputs[:, at] = torch.tanh((places[:, i] - places[:, 0]) / 64)
            at += 1
        inputs[:, at : at + 2] = sure
        inputs[:, at + 2 : count] = reference
        return inputs
