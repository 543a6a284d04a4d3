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
    is_blank: Tensor | None,  # [H, W] bool: see `blank`; None = unknown, or of no interest
    min_confidence: float,
    blank_confidence: float,
    keep_burnt_out: bool,
) -> Tensor:
    """[H, W] bool: pixels past the photometric filter."""
    keep = confidence >= min_confidence
    if is_blank is not None:
        keep &= ~is_blank | (confidence >= blank_confidence)
    if photo is not None and not keep_burnt_out:
        keep &= photo.amin(-1) < BURNT_OUT
    return keep


def blank(photo: Tensor) -> Tensor:
    """[H, W] bool: pixels of a photo [H, W, 3] uint8 around which there is nothing but sensor noise."""
    return texture(photo) < BLANK


def texture(photo: Tensor) -> Tensor:
    """Standard deviation of grey in the window around each pixel, [H, W], in levels.

    Sums of whole numbers are exact in whatever order they are added: the same pixels pass on every machine.
    """
    grey = photo.float().sum(-1)  # [H, W] three times the grey level, 0..765
    total, squares = _window_sums(torch.stack([grey, grey * grey])).long()
    rows, columns = (_window_lengths(side, photo.device) for side in grey.shape)
    count = rows[:, None] * columns
    spread = count * squares - total * total  # count^2 times the variance
    deviation: Tensor = spread.float().sqrt() / (3 * count)
    return deviation


def _window_sums(values: Tensor) -> Tensor:
    """[N, H, W]: first along rows, then along columns; below 2^24, and so exact in float32."""
    half = WINDOW // 2
    rows = F.avg_pool2d(values, (1, WINDOW), 1, (0, half), divisor_override=1)
    return F.avg_pool2d(rows, (WINDOW, 1), 1, (half, 0), divisor_override=1)


def _window_lengths(side: int, device: torch.device) -> Tensor:
    """[side] int64: how many pixels of a row or column a window contains, fewer at both ends."""
    index = torch.arange(side, device=device)
    return (index + WINDOW // 2 + 1).clamp(max=side) - (index - WINDOW // 2).clamp(min=0)
