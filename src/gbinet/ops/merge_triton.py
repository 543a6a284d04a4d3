"""A merge of the feature pyramid: 1x1 convolution of the finer map plus the coarser map upsampled.

The kernels of ops/merge.py. Inference does all of it in one pass; in training the kernel adds the upsampled
map, with a gradient. Upsampling is bilinear: 3/4 of the nearest row and 1/4 of the next, columns alike.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.launch_triton import dot_precision, dot_size
from gbinet.ops.layout import pixel_rows


@triton.jit
def _add_enlarged(total, coarser, y, x, out, keep, height, width, O: tl.constexpr):  # noqa: E741
    """total [BLOCK, OP] plus, at the pixels (y, x), a map [height / 2, width / 2, O] at twice its size."""
    low_height = height // 2
    low_width = width // 2
    near_y = y // 2
    near_x = x // 2
    far_y = tl.minimum(tl.maximum(near_y + 2 * (y % 2) - 1, 0), low_height - 1)
    far_x = tl.minimum(tl.maximum(near_x + 2 * (x % 2) - 1, 0), low_width - 1)
    base = coarser + out[None, :]
    mask = keep[:, None] & (out < O)[None, :]
    v = tl.load(base + ((near_y * low_width + near_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    total += v * 0.5625
    v = tl.load(base + ((near_y * low_width + far_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    total += v * 0.1875
    v = tl.load(base + ((far_y * low_width + near_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    total += v * 0.1875
    v = tl.load(base + ((far_y * low_width + far_x) * O)[:, None], mask=mask, other=0.0).to(tl.float32)
    return total + v * 0.0625


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
    low = coarser + batch * (height // 2) * (width // 2) * O
    total = _add_enlarged(total, low, y, x, out, keep, height, width, O)
    mask = keep[:, None] & (out < O)[None, :]
    place = output + batch * height * width * O + pixel[:, None] * O + out[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _add_kernel(
    own,  # [B, H, W, C]
    coarser,  # [B, H / 2, W / 2, C]
    output,  # [B, H, W, C]
    height,
    width,
    C: tl.constexpr,
    CP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """own plus the coarser map enlarged."""
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < height * width
    channel = tl.arange(0, CP)
    at = batch * height * width * C + pixel[:, None] * C + channel[None, :]
    mask = keep[:, None] & (channel < C)[None, :]
    total = tl.load(own + at, mask=mask, other=0.0).to(tl.float32)
    low = coarser + batch * (height // 2) * (width // 2) * C
    total = _add_enlarged(total, low, pixel // width, pixel % width, channel, keep, height, width, C)
    tl.store(output + at, total.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _shrink_kernel(
    upstream,  # [B, H, W, C]
    gradient,  # [B, H / 2, W / 2, C]
    low_height,
    low_width,
    C: tl.constexpr,
    CP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of the enlargement: every coarse pixel gathers from the 4 x 4 fine ones that read it."""
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < low_height * low_width
    channel = tl.arange(0, CP)
    mask = keep[:, None] & (channel < C)[None, :]
    base = upstream + batch * low_height * low_width * 4 * C + channel[None, :]
    y = pixel // low_width * 2
    x = pixel % low_width * 2
    total = tl.zeros((BLOCK, CP), dtype=tl.float32)
    for i in tl.static_range(4):
        # At the border the nearest pixel counts for the missing one, as in the forward pass.
        row = tl.minimum(tl.maximum(y + i - 1, 0), 2 * low_height - 1) * (2 * low_width)
        line = tl.zeros((BLOCK, CP), dtype=tl.float32)
        for j in tl.static_range(4):
            column = tl.minimum(tl.maximum(x + j - 1, 0), 2 * low_width - 1)
            value = tl.load(base + ((row + column) * C)[:, None], mask=mask, other=0.0).to(tl.float32)
            line += value * (0.75 if j == 1 or j == 2 else 0.25)
        total += line * (0.75 if i == 1 or i == 2 else 0.25)
    at = batch * low_height * low_width * C + pixel[:, None] * C + channel[None, :]
    tl.store(gradient + at, total.to(gradient.dtype.element_ty), mask=mask)


class AddUpsampled(torch.autograd.Function):
    """fine [B, C, H, W] plus coarse [B, C, H / 2, W / 2] upsampled."""

    @staticmethod
    def forward(ctx: Any, fine: Tensor, coarse: Tensor) -> Tensor:
        rows, low = pixel_rows(fine).contiguous(), pixel_rows(coarse).contiguous()
        output = torch.empty_like(rows)
        batch, height, width, channels = rows.shape
        if low.shape != (batch, height / 2, width / 2, channels):
            raise ValueError(
                f"maps [B, H, W, C] {tuple(low.shape)} are not half as large as {tuple(rows.shape)}"
            )
        sizes = _sizes(channels)
        grid = (triton.cdiv(height * width, sizes["BLOCK"]), batch)
        _add_kernel[grid](rows, low, output, height, width, **sizes)
        ctx.coarse_dtype = coarse.dtype
        return output.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        rows = pixel_rows(upstream).contiguous()
        batch, height, width, channels = rows.shape
        low = (height // 2, width // 2)
        gradient = rows.new_empty(batch, *low, channels, dtype=ctx.coarse_dtype)
        sizes = _sizes(channels)
        grid = (triton.cdiv(low[0] * low[1], sizes["BLOCK"]), batch)
        _shrink_kernel[grid](rows, gradient, *low, **sizes)
        return upstream, gradient.permute(0, 3, 1, 2)


def _sizes(channels: int) -> dict[str, int]:
    padded = triton.next_power_of_2(channels)
    return {"C": channels, "CP": padded, "BLOCK": max(1, 2048 // padded)}


def merge(
    fine: Tensor,  # [B, I, H, W]; H and W even
    coarse: Tensor,  # [B, O, H / 2, W / 2]
    weight: Tensor,  # [I, O]
    bias: Tensor,  # [O] float32
) -> Tensor:  # [B, O, H, W]
    rows, low = pixel_rows(fine).contiguous(), pixel_rows(coarse).contiguous()
    batch, height, width, inputs = rows.shape
    outputs = weight.shape[1]
    output = rows.new_empty(batch, height, width, outputs)
    block = 128
    _kernel[(triton.cdiv(height * width, block), batch)](
        rows, low, weight, bias, output, height, width, I=inputs, IP=dot_size(inputs),
        O=outputs, OP=dot_size(outputs), BLOCK=block,
        PRECISION=dot_precision(rows.dtype),
    )  # fmt: skip
    return output.permute(0, 3, 1, 2)
