"""The photometric filter: which pixels to trust, by confidence and by the texture of the photo.

Around an object in front of a blank background (sky, a white table) the network gives background pixels the
depth of the object: nothing contradicts it, and all views make the same mistake, so that they pass the
geometric check. Such pixels have no texture of their own, or are burnt out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW = 5  # px, side of the square in which texture is looked for
BLANK = 2.0  # grey levels (of 255): a smaller standard deviation in the window is sensor noise
BURNT_OUT = 250  # levels (of 255): no channel of a burnt-out pixel is darker


def trusted(
    confidence: Tensor,  # [H, W]
    photo: Tensor | None,  # [H, W, 3] uint8, same device; None = unknown
    min_confidence: float,
    blank_confidence: float,
    keep_burnt_out: bool,
) -> Tensor:
    """[H, W] bool: pixels past the photometric filter."""
    keep = confidence >= min_confidence
    if photo is None:
        return keep
    if blank_confidence > min_confidence:
        keep &= (confidence >= blank_confidence) | (texture(photo) >= BLANK)
    if not keep_burnt_out:
        keep &= photo.amin(-1) < BURNT_OUT
    return keep


def texture(photo: Tensor) -> Tensor:
    """Standard deviation of grey in the window around each pixel, [H, W], in levels.

    Sums of whole numbers are exact in whatever order they are added: the same pixels pass on every machine.
    """
    grey = photo.float().sum(-1)[None, None]  # [1, 1, H, W] three times the grey level, 0..765
    count, total, squares = (_window_sum(v).long() for v in (torch.ones_like(grey), grey, grey * grey))
    spread = count * squares - total * total  # count^2 times the variance
    return (spread.float().sqrt() / (3 * count))[0, 0]


def _window_sum(values: Tensor) -> Tensor:
    """[1, 1, H, W]: first along rows, then along columns; below 2^24, and so exact in float32."""
    half = WINDOW // 2
    rows = F.avg_pool2d(values, (1, WINDOW), 1, (0, half), divisor_override=1)
    return F.avg_pool2d(rows, (WINDOW, 1), 1, (half, 0), divisor_override=1)
