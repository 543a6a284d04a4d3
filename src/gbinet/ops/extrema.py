"""The smallest and the largest value around each pixel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops


def local_extrema(values: Tensor, reach: int, size: tuple[int, int] | None = None) -> Tensor:
    """Smallest and largest of the values [B, h, w] in squares of `reach` pixels around, [B, 2, h, w].

    At a larger size, [B, 2, *size], a pixel has those of the one that it lies in. For cells (int32; on MPS
    below 2^24) and fractional cells (float32) of a search.
    """
    height, width = values.shape[1:]
    size = size or (height, width)
    factor = size[0] // height
    is_multiple = size == (factor * height, factor * width)
    if is_multiple and ops.usable(values) and not (values.requires_grad and torch.is_grad_enabled()):
        from gbinet.ops import extrema_triton

        return extrema_triton.local_extrema(values, reach, factor)
    return local_extrema_plain(values, reach, size)


def local_extrema_plain(values: Tensor, reach: int, size: tuple[int, int]) -> Tensor:
    # Poolings take no integers. Float64 holds all of int32; MPS has none.
    single = values.is_floating_point() or values.device.type == "mps"
    both = torch.stack([-values, values], dim=1).to(torch.float32 if single else torch.float64)
    largest = F.max_pool2d(both, 2 * reach + 1, 1, reach)  # [B, 2, h, w]: of -values, of values
    extrema = torch.cat([-largest[:, :1], largest[:, 1:]], dim=1)
    if extrema.shape[-2:] != size:
        extrema = F.interpolate(extrema, size=size, mode="nearest")
    return extrema.to(values.dtype)
