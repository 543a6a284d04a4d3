"""Warp and group-wise correlation in one pass, without a warped volume in memory. See ops/warp.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gbinet.ops.bilinear_triton import corner, project, sample


@triton.jit
def _forward_kernel(
    reference,  # [B, H, W, C], batches reference_stride apart
    source,  # [S, B, h, w, C], batches source_stride and views view_stride apart
    transform,  # [S, B, 12]: M row by row, then t
    depth,  # [B, D, H, W]
    output,  # [S, B, D, H, W, G]
    reference_stride,
    source_stride,
    view_stride,
    height,
    width,
    source_height,
    source_width,
    bins,
    views,
    C: tl.constexpr,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixels = height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < pixels
    x = (pixel % width).to(tl.float32) + 0.5
    y = (pixel // width).to(tl.float32) + 0.5
    channel = tl.arange(0, C)
    group = tl.arange(0, G)
    own = tl.load(
        reference + batch * reference_stride + pixel[:, None] * C + channel[None, :],
        mask=keep[:, None],
        other=0.0,
    ).to(tl.float32)
    for view in range(views):
        base = source + batch * source_stride + view * view_stride
        number = batch + view * tl.num_programs(1)
        for d in range(bins):
            z = tl.load(depth + (batch * bins + d) * pixels + pixel, mask=keep, other=1.0)
            top, left, fy, fx = project(transform + number * 12, x, y, z, source_height, source_width, 1)
            warped = sample(base, top, left, fy, fx, channel, keep, source_height, source_width, C)
            value = tl.sum(tl.reshape(own * warped, (BLOCK, G, C // G)), axis=2) * (G / C)
            pointers = output + ((number * bins + d) * pixels + pixel)[:, None] * G + group[None, :]
            tl.store(pointers, value.to(output.dtype.element_ty), mask=keep[:, None])


@triton.jit
def _backward_kernel(
    reference,  # [B, H, W, C]
    source,  # [S, B, h, w, C]
    transform,  # [S, B, 12]
    depth,  # [B, D, H, W]
    grad_output,  # [S, B, D, H, W, G]
    grad_reference,  # [B, H, W, C], batches grad_reference_stride apart
    grad_source,  # [S, B, h, w, C] float32, zeros; batches and views apart as the next arguments say
    grad_reference_stride,
    grad_source_stride,
    grad_view_stride,
    reference_stride,
    source_stride,
    view_stride,
    height,
    width,
    source_height,
    source_width,
    bins,
    views,
    C: tl.constexpr,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    pixels = height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pixel < pixels
    x = (pixel % width).to(tl.float32) + 0.5
    y = (pixel // width).to(tl.float32) + 0.5
    channel = tl.arange(0, C)
    group = tl.arange(0, G)
    own_offset = pixel[:, None] * C + channel[None, :]
    own = tl.load(reference + batch * reference_stride + own_offset, mask=keep[:, None], other=0.0)
    own = own.to(tl.float32)
    own_grad = tl.zeros((BLOCK, C), dtype=tl.float32)
    for view in range(views):
        base = source + batch * source_stride + view * view_stride
        grad_base = grad_source + batch * grad_source_stride + view * grad_view_stride
        number = batch + view * tl.num_programs(1)
        for d in range(bins):
            z = tl.load(depth + (batch * bins + d) * pixels + pixel, mask=keep, other=1.0)
            pointers = grad_output + ((number * bins + d) * pixels + pixel)[:, None] * G + group[None, :]
            upstream = tl.load(pointers, mask=keep[:, None], other=0.0).to(tl.float32) * (G / C)
            spread = tl.broadcast_to(tl.reshape(upstream, (BLOCK, G, 1)), (BLOCK, G, C // G))
            grad = tl.reshape(spread, (BLOCK, C))
            top, left, fy, fx = project(transform + number * 12, x, y, z, source_height, source_width, 1)
            to_source = grad * own
            for k in tl.static_range(4):
                row = top + k // 2
                column = left + k % 2
                weight_y = fy if k // 2 == 1 else 1 - fy
                weight_x = fx if k % 2 == 1 else 1 - fx
                weight = (weight_y * weight_x)[:, None]
                p, m = corner(base, row, column, channel, keep, source_height, source_width, C)
                own_grad += tl.load(p, mask=m, other=0.0).to(tl.float32) * weight * grad
                p, m = corner(grad_base, row, column, channel, keep, source_height, source_width, C)
                tl.atomic_add(p, to_source * weight, mask=m, sem="relaxed")
    pointers = grad_reference + batch * grad_reference_stride + own_offset
    tl.store(pointers, own_grad.to(grad_reference.dtype.element_ty), mask=keep[:, None])


def correlate(
    reference: Tensor,  # [B, H, W, C]
    sources: Tensor,  # [S, B, h, w, C]
    transform: Tensor,  # [S, B, 12]
    depth: Tensor,  # [B, D, H, W]
    groups: int,
    dtype: torch.dtype | None = None,  # of the result; None: the features'
) -> Tensor:  # [S, B, D, H, W, G]
    bins, height, width = depth.shape[1:]
    channels = reference.shape[-1]
    shape = (len(sources), len(reference), bins, height, width, groups)
    output = reference.new_empty(shape, dtype=dtype or reference.dtype)
    _forward_kernel[_grid(reference)](
        reference, sources, transform, depth, output, *_arguments(reference, sources, bins),
        C=channels, G=groups, **_cut(channels),
    )  # fmt: skip
    return output


def correlate_backward(
    reference: Tensor,
    sources: Tensor,
    transform: Tensor,
    depth: Tensor,
    grad_output: Tensor,  # [(S,) B, D, H, W, G]
    grad_reference: Tensor,  # [B, H, W, C], written
    grad_sources: Tensor,  # [S, B, h, w, C] float32, added to
    groups: int,
) -> None:
    channels = reference.shape[-1]
    strides = (grad_reference.stride(0), grad_sources.stride(1), grad_sources.stride(0))
    _backward_kernel[_grid(reference)](
        reference, sources, transform, depth, grad_output.contiguous(), grad_reference, grad_sources,
        *strides, *_arguments(reference, sources, depth.shape[1]),
        C=channels, G=groups, **_cut(channels),
    )  # fmt: skip


def _cut(channels: int) -> dict[str, int]:
    """Pixels of a program, and its warps. With 8 channels, values move between threads often, which is faster
    within one warp."""
    if channels <= 8:
        return {"BLOCK": 32, "num_warps": 1}
    return {"BLOCK": max(16, 1024 // channels), "num_warps": 4}


def _grid(reference: Tensor) -> tuple[int, int]:
    batch, height, width, channels = reference.shape
    return triton.cdiv(height * width, _cut(channels)["BLOCK"]), batch


def _arguments(reference: Tensor, sources: Tensor, bins: int) -> tuple[int, ...]:
    strides = (reference.stride(0), sources.stride(1), sources.stride(0))
    return (*strides, *reference.shape[1:3], *sources.shape[2:4], bins, len(sources))
