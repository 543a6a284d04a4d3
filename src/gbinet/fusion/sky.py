"""Sky, by what is measured: no confident depth, no texture, up to the upper edge of the photo; no network.

A roof before a pale sky has a fringe of sky on it: the network gives the first pixels beyond the edge the
depth of the roof, often with confidence, and the edge itself lends them texture, so that neither filter for
blank pixels sees them. They have the colour of the sky beside them, which tells them from the roof. From sky
that is beyond doubt it therefore spreads over what has its colour, but not far: a wall that has it too loses
its rim at most. What the network is sure of is never sky.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.fusion.photometric import BLANK, texture

_SMOOTH = 5  # px: specks in the sky that are bridged (birds, noise)
_BLOCK = 4  # px: sky spreads by blocks of pixels first
_REACH = 0.05  # of the photo's width, that it spreads
_GROW = 4  # px that it spreads then: a block, or half the window of the texture
_ALIKE = 16.0  # levels (of 255) that a fringe's colour differs from the sky beside it, at most
_LEAST = 0.01  # share of the photo below which nothing is taken for sky
_SURE = 0.95  # confidence from which on nothing is sky


def sky(photo: Tensor, confidence: Tensor, confident: float) -> Tensor:
    """[H, W] bool: sky and its fringe, from a photo [H, W, 3] uint8 and confidence [H, W].

    confident: what has so much is not taken for sky to begin with.
    """
    unsure = confidence < _SURE
    open_air = ((texture(photo) < BLANK) & (confidence < confident)).float()[None, None]
    smooth = F.avg_pool2d(open_air, _SMOOTH, 1, _SMOOTH // 2, count_include_pad=False) > 0.5
    region = smooth[0, 0].int().cumprod(0).bool()  # downwards from the upper edge, column by column
    region &= (region.float().mean() >= _LEAST) & unsure
    if region.device.type == "cpu" and not region.any():  # a GPU would have to wait
        return region
    colours = photo.permute(2, 0, 1)[None].float()  # [1, 3, H, W]
    region = region | (_of_blocks(region, colours, unsure) & unsure)
    return _spread(region, colours, unsure, _GROW)


def _of_blocks(region: Tensor, colours: Tensor, unsure: Tensor) -> Tensor:
    """[H, W] bool: pixels of blocks that the region spreads to, as far as they have the block's colour."""
    height, width = region.shape
    whole, mean = (
        F.avg_pool2d(t, _BLOCK, ceil_mode=True) for t in ((region & unsure).float()[None, None], colours)
    )
    doubtful = F.avg_pool2d(unsure.float()[None, None], _BLOCK, ceil_mode=True)[0, 0] > 0.5
    steps = int(_REACH * width / _BLOCK)
    blocks = _spread(whole[0, 0] > 0.5, mean, doubtful, steps).float()[None, None]
    found, own = (
        t.repeat_interleave(_BLOCK, 2).repeat_interleave(_BLOCK, 3)[..., :height, :width]
        for t in (blocks, mean)
    )
    return (found[0, 0] > 0) & ((colours - own).abs().amax(1)[0] <= _ALIKE)


def _spread(region: Tensor, colours: Tensor, allowed: Tensor, steps: int) -> Tensor:
    """The region [H, W] with what lies beside it, is allowed [H, W] and has its colour [1, 3, H, W]; again
    and again. What is added has the colour of the region, not its own: else it would walk down a gradient."""
    carried = colours
    for _ in range(steps):
        there = region.float()[None, None]
        near = F.avg_pool2d(there, 3, 1, 1)
        beside = F.avg_pool2d(carried * there, 3, 1, 1) / near.clamp_min(1e-6)
        alike = ((colours - beside).abs().amax(1) <= _ALIKE)[0]
        new = (near[0, 0] > 0) & alike & allowed & ~region
        carried = torch.where(new, beside, carried)
        region = region | new
    return region
