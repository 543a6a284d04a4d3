"""Images as the encoder takes them, in one pass. The kernel of ops/normalise.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.normalise import PADDED_CHANNELS

_BLOCK = 256


@triton.jit
def _normalise(
    images,  # [N, C, H, W], rows of pixels contiguous
    output,  # [N, H', W', WIDTH]
    image_stride,
    channel_stride,
    row_stride,
    height,
    width,
    out_height,
    out_width,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < out_height * out_width
    y = tl.minimum(pixel // out_width, height - 1)
    x = tl.minimum(pixel % out_width, width - 1)
    c = tl.arange(0, WIDTH)
    place = image * image_stride + (y.to(tl.int64) * row_stride + x)[:, None] + c[None, :] * channel_stride
    values = tl.load(images + place, mask=keep[:, None] & (c < C)[None, :], other=0.5)
    values = (values.to(output.dtype.element_ty).to(tl.float32) - 0.5) * 2
    target = output + image * out_height * out_width * WIDTH + (pixel * WIDTH)[:, None] + c[None, :]
    tl.store(target, values.to(output.dtype.element_ty), mask=keep[:, None])


def normalise(images: Tensor, dtype: torch.dtype, multiple: int) -> Tensor:
    """[N, C, H, W] -> [N, 4, H', W'], channels last."""
    if images.stride(3) != 1:
        images = images.contiguous()
    count, channels, height, width = images.shape
    out_height, out_width = height + -height % multiple, width + -width % multiple
    output = images.new_empty(count, out_height, out_width, PADDED_CHANNELS, dtype=dtype)
    _normalise[(triton.cdiv(out_height * out_width, _BLOCK), count)](
        images, output, *images.stride()[:3], height, width, out_height, out_width, C=channels,
        WIDTH=PADDED_CHANNELS, BLOCK=_BLOCK,
    )  # fmt: skip
    return output.permute(0, 3, 1, 2)
