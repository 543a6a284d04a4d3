"""A learned correction of the smoothed depth, after the last stage.

How far to smooth depends on the surface (a plain wall far, a relief hardly), and a mean flattens curvature. A
small network of 2D convolutions at full size sees the fractional cells unsmoothed and in three smoothings,
two confidences, and the reference's features. It gives weights for these four candidates, and a correction.
With `sides`, the nearest and the farthest cell around are candidates too: at a silhouette, that of the other
side. With `confidence`, it also gives the probability that the refined depth is right (`is_right` in
`geometry.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbinet.model.layers import Conv2d, PlanarConv2d
from gbinet.ops import refine
from gbinet.ops.extrema import local_extrema
from gbinet.ops.smooth import smoothed

SMOOTHINGS = 4  # candidates: from unsmoothed to the strongest smoothing
SIDES = 2  # candidates: the nearest and the farthest around
SIDE_REACH = 2  # px that these are looked for around a pixel
DILATIONS = (2, 4, 8)


def make_candidates(
    cells: Tensor,  # [B, h, w] float32, fractional
    smooth: Tensor,  # [B, h, w]: cells after the smoothing of the stage
    radius: int,  # of that smoothing
    reach: float,  # of that smoothing
    sides: bool = False,
) -> Tensor:  # [B, SMOOTHINGS (+ SIDES), h, w]
    """Cells from unsmoothed to smoothest; with `sides`, then the nearest and the farthest around."""
    less = smoothed(cells.detach(), max(radius // 2, 1), reach)  # its kernel has no gradient
    candidates = torch.stack([cells, less, smooth, smoothed(smooth, radius, reach)], dim=1)
    return torch.cat([candidates, local_extrema(smooth, SIDE_REACH)], dim=1) if sides else candidates


class Refiner(nn.Module):
    """Refined fractional cells from candidates. Initialised to take the mean of the smoothings."""

    def __init__(self, channels: int, width: int = 16, sides: bool = False, confidence: bool = False) -> None:
        super().__init__()
        candidates = SMOOTHINGS + SIDES * sides
        self.entry = Conv2d(refine.input_channels(candidates, channels), width, 3, padding=1)
        self.spread = nn.ModuleList(Conv2d(width, width, 3, padding=d, dilation=d) for d in DILATIONS)
        self.output = PlanarConv2d(width, candidates + 1 + confidence, 3, padding=1)
        nn.init.zeros_(self.output.weight)
        assert self.output.bias is not None
        nn.init.zeros_(self.output.bias)
        with torch.no_grad():
            self.output.bias[SMOOTHINGS:candidates] = -4.0  # hardly any weight for the sides

    def forward(
        self,
        candidates: Tensor,  # [B, 4 or 6, h, w] float32, in cells
        confidences: Tensor,  # [B, 2, h, w]: of the last stage, of all stages
        reference: Tensor,  # [B, C, h, w] features
    ) -> tuple[Tensor, Tensor | None]:  # [B, h, w] float32, in cells; logit of the confidence [B, 1, h, w]
        reference = reference.to(self.entry.weight.dtype)
        aligned = self.entry.packed is not None
        inputs = refine.inputs(candidates, SMOOTHINGS, confidences, reference, aligned)
        hidden = self.entry(inputs, relu=True)
        del inputs
        for layer in self.spread:
            hidden = layer(hidden, relu=True, skip=hidden)
        return refine.refined(self.output(hidden), candidates)
