"""Images as the encoder takes them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops

PADDED_CHANNELS = 4  # pixels are then read in whole words


def normalised(images: Tensor, dtype: torch.dtype, multiple: int, packed: bool) -> Tensor:
    """Images [N, 3, H, W] in [0, 1] -> [N, 3, H', W'] in [-1, 1], channels last.

    Padded on the right and at the bottom to a multiple, by repeating the border. packed: for packed layers,
    which take [N, 4, H', W'] with zeros in the last channel.
    """
    if packed and ops.usable(images):
        from gbinet.ops.normalise_triton import normalise

        return normalise(images, dtype, multiple)
    return normalised_plain(images, dtype, multiple)


def normalised_plain(images: Tensor, dtype: torch.dtype, multiple: int) -> Tensor:
    height, width = images.shape[-2:]
    result = torch.empty_like(images, dtype=dtype, memory_format=torch.channels_last).copy_(images)
    if height % multiple or width % multiple:
        result = F.pad(result, (0, -width % multiple, 0, -height % multiple), mode="replicate")
    return result.sub_(0.5).mul_(2).contiguous(memory_format=torch.channels_last)
