"""3x3 deformable convolution (version 1: offsets, no modulation)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet import ops
from gbinet.camera import pixel_centres
from gbinet.ops.bilinear import sample


def deform_conv2d(
    features: Tensor,  # [B, C, H, W]
    offsets: Tensor,  # [B, 18, H, W]: (dy, dx) per tap, taps in row-major order
    weight: Tensor,  # [O, C, 3, 3]
    packed: Tensor | None = None,  # the weight as `pack` gives it, for inference only
    out: Tensor | None = None,  # memory from `empty_output`: the result is written there
) -> Tensor:  # [B, O, H, W]
    """Sample at nine displaced positions per pixel (bilinear, zero outside) and convolve."""
    if ops.usable_on_cpu(features, offsets, weight):
        from gbinet.ops import deform_cpu

        shape = (len(features), len(weight), *features.shape[-2:])
        result = features.new_empty(shape) if out is None else out
        deform_cpu.deform_conv2d(features, offsets, weight, result)
        return result
    if not ops.usable(features):
        result = deform_conv2d_plain(features, offsets, weight)
    elif packed is None:
        result = deform_conv2d_fast(features, offsets, weight)
    else:
        from gbinet.ops.deform_triton import forward_into

        batch, _, height, width = features.shape
        out = empty_output(features, batch, len(weight), height, width) if out is None else out
        forward_into(features, offsets, packed, out)
        return out
    return result if out is None else out.copy_(result)


def deform_conv2d_plain(features: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """The reference: tap by tap.

    One tap's samples exist at a time, so inference never holds nine copies of the map. Positions are float32
    (or float64 for float64 features) whatever the type of the features.
    """
    height, width = features.shape[-2:]
    dtype = torch.promote_types(offsets.dtype, torch.float32)
    x, y = pixel_centres(height, width, device=features.device, dtype=dtype).unbind(-1)  # [H, W] each
    output: Tensor | None = None
    for tap in range(9):
        dy, dx = tap // 3 - 1, tap % 3 - 1
        grid_x = (x + dx + offsets[:, 2 * tap + 1]) * (2 / width) - 1  # -1, 1: left and right border
        grid_y = (y + dy + offsets[:, 2 * tap]) * (2 / height) - 1
        sampled = sample(features, torch.stack([grid_x, grid_y], dim=-1))  # [B, C, H, W]
        term = F.conv2d(sampled, weight[:, :, tap // 3, tap % 3, None, None])
        output = term if output is None else output + term
    assert output is not None
    return output


def deform_conv2d_fast(features: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """By the kernels, with gradients."""
    from gbinet.ops.deform_triton import SampledConvolution

    result: Tensor = SampledConvolution.apply(features, offsets, weight)  # type: ignore[no-untyped-call]
    return result


def pack(weight: Tensor) -> Tensor | None:
    """[O, C, 3, 3] -> [9, C, O], as the kernels read it; None where they cannot be used."""
    return taps_of(weight.detach()) if ops.usable(weight) else None


def empty_output(like: Tensor, *shape: int) -> Tensor:
    """Uninitialised memory for results [..., O, H, W], in the layout they are written in: by kernels channels
    last."""
    if not ops.usable(like):
        return like.new_empty(shape)
    *leading, channels, height, width = shape
    return like.new_empty(*leading, height, width, channels).movedim(-1, -3)


def taps_of(weight: Tensor) -> Tensor:
    """[O, C, 3, 3] -> [9, C, O]."""
    return weight.permute(2, 3, 1, 0).reshape(9, weight.shape[1], -1).contiguous()
