"""A merge of the feature pyramid: 1x1 convolution of the finer map plus the coarser map upsampled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.conv import Packed
from gbinet.ops.inplace import add_into


def merge(
    fine: Tensor,  # [B, I, H, W]
    coarse: Tensor,  # [B, O, H / 2, W / 2]
    lateral: nn.Conv2d,  # 1x1
    packed: Packed | None = None,  # the convolution as the kernels read it
) -> Tensor:  # [B, O, H, W]
    if not ops.usable(fine):
        return merge_plain(fine, coarse, lateral)
    from gbinet.ops import merge_triton

    if packed is None:
        merged: Tensor = merge_triton.AddUpsampled.apply(lateral(fine), coarse)  # type: ignore[no-untyped-call]
        return merged
    return merge_triton.merge(fine, coarse, packed.weight[0, 0, 0], packed.bias)


def merge_plain(fine: Tensor, coarse: Tensor, lateral: nn.Conv2d) -> Tensor:
    merged: Tensor = lateral(fine)
    device = "cpu" if coarse.is_meta else coarse.device.type
    with torch.autocast(device, enabled=False):  # it would convert the map to float32
        upsampled = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
    return add_into(merged, upsampled)
