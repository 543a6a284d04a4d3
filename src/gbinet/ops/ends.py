"""The smallest and the largest value around each pixel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops


def nearest_and_farthest(values: Tensor, reach: int, size: tuple[int, int] | None = None) -> Tensor:
    """Smallest and largest of the values [B, h, w] in squares around each pixel, [B, 2, h, w].

    At a larger size, [B, 2, *size], a pixel has those of the one that it lies in. For cells (int32; on MPS
    below 2^24) and places (float32) of a search.
    """
    height, width = values.shape[1:]
    size = size or (height, width)
    factor = size[0] // height
    repeated = size == (factor * height, factor * width)
    if repeated and ops.usable(values) and not (values.requires_grad and torch.is_grad_enabled()):
        from gbinet.ops.ends_triton import ends

        return ends(values, reach, factor)
    return nearest_and_farthest_plain(values, reach, size)


def nearest_and_farthest_plain(values: Tensor, reach: int, size: tuple[int, int]) -> Tensor:
    # Poolings take no integers. Float64 holds all of int32; MPS has none.
    single = values.is_floating_point() or values.device.type == "mps"
    both = torch.stack([-values, values], dim=1).to(torch.float32 if single else torch.float64)
    found = F.max_pool2d(both, 2 * reach + 1, 1, reach)
    found = torch.cat([-found[:, :1], found[:, 1:]], dim=1)
    if found.shape[-2:] != size:
        found = F.interpolate(found, size=size, mode="nearest")
    return found.to(values.dtype)
