"""Sky, by what is measured: no confident depth, no texture, up to the upper edge of the photo; no network.

A roof before a pale sky has a fringe of sky on it: the network gives the first pixels beyond the edge the
depth of the roof, and the edge itself lends them texture, so that neither filter for blank pixels sees them.
They have the colour of the sky beside them.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gbinet.fusion.photometric import BLANK, texture

_SMOOTH = 5  # px: specks in the sky that are bridged (birds, noise)
_GROW = 4  # px beyond what is blank that may be fringe: half the window of the texture, blur, a pixel more
_ALIKE = 16.0  # levels (of 255) that a fringe's colour differs from the sky beside it, at most
_LEAST = 0.01  # share of the photo below which nothing is taken for sky


def sky(photo: Tensor, confident: Tensor) -> Tensor:
    """[H, W] bool: sky and its fringe, from a photo [H, W, 3] uint8 and where depth is confident [H, W]."""
    open_air = ((texture(photo) < BLANK) & ~confident).float()[None, None]
    smooth = F.avg_pool2d(open_air, _SMOOTH, 1, _SMOOTH // 2, count_include_pad=False) > 0.5
    region = smooth[0, 0].int().cumprod(0).bool()  # downwards from the upper edge, column by column
    region &= region.float().mean() >= _LEAST
    colours = photo.permute(2, 0, 1)[None].float()  # [1, 3, H, W]
    for _ in range(_GROW):
        there = region.float()[None, None]
        near = F.avg_pool2d(there, 3, 1, 1)
        beside = F.avg_pool2d(colours * there, 3, 1, 1) / near.clamp_min(1e-6)
        alike = ((colours - beside).abs().amax(1) <= _ALIKE)[0]
        region = region | ((near[0, 0] > 0) & alike)
    return region
