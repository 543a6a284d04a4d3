"""A merge of the feature pyramid: 1x1 convolution of the own scale plus the coarser one enlarged."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.conv import Packed
from gbinet.ops.inplace import add_into


def merge(own: Tensor, coarser: Tensor, lateral: nn.Conv2d, packed: Packed | None = None) -> Tensor:
    """own [B, I, H, W] and coarser [B, O, H / 2, W / 2] -> [B, O, H, W]; lateral is a 1x1 convolution."""
    if not ops.usable(own):
        return merge_plain(own, coarser, lateral)
    from gbinet.ops import merge_triton

    if packed is None:
        merged: Tensor = merge_triton.AddEnlarged.apply(lateral(own), coarser)  # type: ignore[no-untyped-call]
        return merged
    return merge_triton.merge(own, coarser, packed.weight[0, 0, 0], packed.bias)


def merge_plain(own: Tensor, coarser: Tensor, lateral: nn.Conv2d) -> Tensor:
    changed: Tensor = lateral(own)
    kind = "cpu" if coarser.is_meta else coarser.device.type
    with torch.autocast(kind, enabled=False):  # it would widen the map to float32
        enlarged = F.interpolate(coarser, scale_factor=2, mode="bilinear", align_corners=False)
    return add_into(changed, enlarged)
