"""A last correction of the smoothed depth, learned: what a mean over neighbours cannot know.

How far to smooth depends on the place (a plain wall far, a relief hardly), and a mean flattens curvature. A
small network of 2D convolutions at full size looks at the answers as they are and at three smoothings of
them, at the confidence and at the reference's features; it mixes the four and adds a correction of its own.
With `sides` it may also take the nearest or the farthest answer around: at a silhouette, the other side's.
With `confidence` it also gives the probability that its answer is right (`is_right` in `geometry.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbinet.model.layers import Conv2d, PlanarConv2d
from gbinet.ops import refine
from gbinet.ops.ends import nearest_and_farthest
from gbinet.ops.smooth import smoothed

SMOOTHINGS = 4  # from none to the strongest
SIDES = 2
SIDE_REACH = 2  # px around, for the other side of an edge
DILATIONS = (2, 4, 8)


def candidates(place: Tensor, smooth: Tensor, radius: int, reach: float, sides: bool = False) -> Tensor:
    """Answers in cells [B, h, w] and their smoothing [B, h, w] -> from raw to smoothest, then the nearest and
    the farthest around, if asked for: [B, 4 or 6, h, w]."""
    less = smoothed(place.detach(), max(radius // 2, 1), reach)  # its kernel has no gradient
    answers = [place, less, smooth, smoothed(smooth, radius, reach)]
    if not sides:
        return torch.stack(answers, dim=1)
    around = nearest_and_farthest(smooth, SIDE_REACH)
    return torch.cat([*(a[:, None] for a in answers), around], dim=1)


class Refiner(nn.Module):
    """Continuous answers from candidates. New ones take the candidates' mean."""

    def __init__(self, channels: int, width: int = 16, sides: bool = False, confidence: bool = False) -> None:
        super().__init__()
        self.candidates = SMOOTHINGS + SIDES * sides
        self.entry = Conv2d(refine.input_channels(self.candidates, channels), width, 3, padding=1)
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
        kind, aligned = self.entry.weight.dtype, self.entry.packed is not None
        inputs = refine.inputs(places, SMOOTHINGS, sure, reference.to(kind), aligned)
        hidden = self.entry(inputs, relu=True)
        del inputs
        for layer in self.spread:
            hidden = layer(hidden, relu=True, skip=hidden)
        return refine.mixed(self.output(hidden), places)
