"""Finds sky without a network: no confident depth, no texture, and connected to the upper edge of the photo.

A roof in front of a pale sky has a fringe of sky: the network gives the first pixels beyond the edge the
depth of the roof, often with confidence, and the edge itself gives them texture, so that neither filter for
blank pixels drops them. They differ from the roof by the colour of the sky beside them. So certain sky
spreads over neighbours of its colour, but not far: a wall of the same colour loses its rim at most. Pixels
with very high confidence are never sky.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_SMOOTH = 5  # px: specks in the sky up to this size are bridged (birds, noise)
_BLOCK = 4  # px: sky spreads by blocks of pixels first
_REACH = 0.05  # of the photo's width, by which it spreads in blocks
_GROW = 4  # px by which it spreads then: a block, or half the window of the texture
_MAX_DIFFERENCE = 16.0  # levels (of 255) between a fringe and the sky beside it
_MIN_SHARE = 0.01  # of the photo: a smaller region is not taken for sky
_MAX_CONFIDENCE = 0.95  # of sky


def sky(photo: Tensor, is_blank: Tensor, confidence: Tensor, confident: float) -> Tensor:
    """[H, W] bool: sky and its fringe, from a photo [H, W, 3] uint8 and confidence [H, W].

    is_blank: [H, W] bool, see photometric.blank. confident: sky starts from blank pixels with less confidence
    than this.
    """
    unsure = confidence < _MAX_CONFIDENCE
    bare = (is_blank & (confidence < confident)).float()[None, None]
    smooth = F.avg_pool2d(bare, _SMOOTH, 1, _SMOOTH // 2, count_include_pad=False) > 0.5
    region = smooth[0, 0].int().cumprod(0).bool()  # downwards from the upper edge, column by column
    region &= (region.float().mean() >= _MIN_SHARE) & unsure
    if region.device.type == "cpu" and not region.any():  # a GPU would have to wait
        return region
    colours = photo.permute(2, 0, 1)[None].float()  # [1, 3, H, W]
    region = region | (_spread_by_blocks(region, colours, unsure) & unsure)
    return _spread(region, colours, unsure, _GROW)


def _spread_by_blocks(region: Tensor, colours: Tensor, unsure: Tensor) -> Tensor:
    """[H, W] bool: the pixels, in blocks that the region spreads to, that have the colour of their block."""
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
    return (found[0, 0] > 0) & ((colours - own).abs().amax(1)[0] <= _MAX_DIFFERENCE)


def _spread(region: Tensor, colours: Tensor, allowed: Tensor, steps: int) -> Tensor:
    """Grow the region [H, W] step by step over allowed neighbours [H, W] of its colour [1, 3, H, W].

    Pixels that are added take the region's colour, so that it does not spread along a gradient.
    """
    carried = colours
    for _ in range(steps):
        there = region.float()[None, None]
        near = F.avg_pool2d(there, 3, 1, 1)
        beside = F.avg_pool2d(carried * there, 3, 1, 1) / near.clamp_min(1e-6)
        alike = ((colours - beside).abs().amax(1) <= _MAX_DIFFERENCE)[0]
        new = (near[0, 0] > 0) & alike & allowed & ~region
        carried = torch.where(new, beside, carried)
        region = region | new
    return region
