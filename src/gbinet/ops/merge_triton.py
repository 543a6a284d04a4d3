"""A merge of the feature pyramid in one pass: 1x1 convolution of the own scale plus the coarser one enlarged.

Inference only. The kernel of ops/merge.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.warp_triton import rows_of_channels


@triton.jit(do_not_specialize=("height", "width"))
def _kernel(
    own,  # [B, H, W, I]
    coarser,  # [B, H / 2, W / 2, O]
    weights,  # [I, O]
    bias,  # [O] float32
    output,  # [B, H, W, O]
    height,
    width,
    I: tl.constexpr,  # noqa: E741
    IP: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    OP: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < height * width
    y = pixel // width
    x = pixel % width
    channel = tl.arange(0, IP)
    out = tl.arange(0, OP)
    values = tl.load(
        own + batch * height * width * I + pixel[:, None] * I + channel[None, :],
        mask=keep[:, None] & (channel < I)[None, :],
        other=0.0,
    )
    matrix = tl.load(
        weights + channel[:, None] * O + out[None, :],
        mask=(channel < I)[:, None] & (out < O)[None, :],
        other=0.0,
    )
    total = tl.dot(values, matrix, input_precision=PRECISION)
    total += tl.load(bias + out, mask=out < O, other=0.0)[None, :]

    # Doubling, bilinear, pixel centres aligned: 3/4 of the nearest row and 1/4 of the next one.
    low_height = height // 2
    low_width = width // 2
    near_y = y // 2
    near_x = x // 2
    far_y = tl.minimum(tl.maximum(near_y + 2 * (y % 2) - 1, 0), low_height - 1)
    far_x = tl.minimum(tl.maximum(near_x + 2 * (x % 2) - 1, 0), low_width - 1)
    base = coarser + batch * low_height * low_width * O + out[None, :]
    mask = keep[:, None] & (out < O)[None, :]
    v = tl.load(base + ((near_y * low_width + near_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    total += v * 0.5625
    v = tl.load(base + ((near_y * low_width + far_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    total += v * 0.1875
    v = tl.load(base + ((far_y * low_width + near_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    total += v * 0.1875
    v = tl.load(base + ((far_y * low_width + far_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    total += v * 0.0625
    place = output + batch * height * width * O + pixel[:, None] * O + out[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=mask)


def merge(
    own: Tensor,  # [B, I, H, W]; H and W even
    coarser: Tensor,  # [B, O, H / 2, W / 2]
    weight: Tensor,  # [I, O]
    bias: Tensor,  # [O] float32
) -> Tensor:  # [B, O, H, W]
    rows, low = rows_of_channels(own).contiguous(), rows_of_channels(coarser).contiguous()
    batch, height, width, inputs = rows.shape
    outputs = weight.shape[1]
    output = rows.new_empty(batch, height, width, outputs)
    block = 128
    _kernel[(triton.cdiv(height * width, block), batch)](
        rows, low, weight, bias, output, height, width, I=inputs, IP=max(16, triton.next_power_of_2(inputs)),
        O=outputs, OP=max(16, triton.next_power_of_2(outputs)), BLOCK=block,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    return output.permute(0, 3, 1, 2)
