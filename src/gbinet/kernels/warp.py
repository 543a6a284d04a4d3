"""Warp and group-wise correlation in one pass: no warped volume is ever written. Twin of model/warp.py."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _corner_pointers(base, row, column, channel, keep, height, width, C: tl.constexpr):
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & keep
    pointers = base + ((row * width + column) * C)[:, None] + channel[None, :]
    return pointers, inside[:, None] & (channel < C)[None, :]


@triton.jit
def _position(transform, batch, x, y, depth, height, width):
    """Where reference pixels with these depths fall in the source: neighbour above left, fractions."""
    t = transform + batch * 12
    rx = tl.load(t + 0) * x + tl.load(t + 1) * y + tl.load(t + 2)
    ry = tl.load(t + 3) * x + tl.load(t + 4) * y + tl.load(t + 5)
    rz = tl.load(t + 6) * x + tl.load(t + 7) * y + tl.load(t + 8)
    z = rz * depth + tl.load(t + 11)
    front = z > 0
    safe = tl.where(front, z, 1.0)
    # Pixel centres are at +0.5 (camera.py); here positions count pixels, so that a centre is an integer.
    column = tl.where(front, (rx * depth + tl.load(t + 9)) / safe - 0.5, -2.0)
    row = tl.where(front, (ry * depth + tl.load(t + 10)) / safe - 0.5, -2.0)
    column = tl.minimum(tl.maximum(column, -2.0), width + 1.0)
    row = tl.minimum(tl.maximum(row, -2.0), height + 1.0)
    top = tl.floor(row)
    left = tl.floor(column)
    return top.to(tl.int32), left.to(tl.int32), (row - top)[:, None], (column - left)[:, None]


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
            top, left, fy, fx = _position(transform, number, x, y, z, source_height, source_width)
            p, m = _corner_pointers(base, top, left, channel, keep, source_height, source_width, C)
            warped = tl.load(p, mask=m, other=0.0).to(tl.float32) * (1 - fy) * (1 - fx)
            p, m = _corner_pointers(base, top, left + 1, channel, keep, source_height, source_width, C)
            warped += tl.load(p, mask=m, other=0.0).to(tl.float32) * (1 - fy) * fx
            p, m = _corner_pointers(base, top + 1, left, channel, keep, source_height, source_width, C)
            warped += tl.load(p, mask=m, other=0.0).to(tl.float32) * fy * (1 - fx)
            p, m = _corner_pointers(base, top + 1, left + 1, channel, keep, source_height, source_width, C)
            warped += tl.load(p, mask=m, other=0.0).to(tl.float32) * fy * fx
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
            top, left, fy, fx = _position(transform, number, x, y, z, source_height, source_width)
            to_source = grad * own
            for corner in tl.static_range(4):
                row = top + corner // 2
                column = left + corner % 2
                weight_y = fy if corner // 2 == 1 else 1 - fy
                weight_x = fx if corner % 2 == 1 else 1 - fx
                weight = weight_y * weight_x
                p, m = _corner_pointers(base, row, column, channel, keep, source_height, source_width, C)
                own_grad += tl.load(p, mask=m, other=0.0).to(tl.float32) * weight * grad
                p, m = _corner_pointers(grad_base, row, column, channel, keep, source_height, source_width, C)
                tl.atomic_add(p, to_source * weight, mask=m, sem="relaxed")
    pointers = grad_reference + batch * grad_reference_stride + own_offset
    tl.store(pointers, own_grad.to(grad_reference.dtype.element_ty), mask=keep[:, None])


class _WarpCorrelation(torch.autograd.Function):
    """One source view, which may have a size of its own."""

    @staticmethod
    def forward(
        ctx: Any, reference: Tensor, source: Tensor, transform: Tensor, depth: Tensor, groups: int
    ) -> Tensor:
        reference, source = rows_of_channels(reference), rows_of_channels(source)
        output = _launch_forward(reference, source[None], transform, depth, groups)
        ctx.save_for_backward(reference, source, transform, depth)
        ctx.groups = groups
        return output[0].permute(0, 4, 1, 2, 3)  # [B, G, D, H, W] in channels_last_3d layout

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        reference, source, transform, depth = ctx.saved_tensors
        upstream = grad_output.permute(0, 2, 3, 4, 1)  # [B, D, H, W, G]
        grad_reference = torch.empty(reference.shape, dtype=reference.dtype, device=reference.device)
        grad_source = torch.zeros(source.shape, dtype=torch.float32, device=source.device)
        inputs = (reference, source[None], transform, depth, upstream)
        _launch_backward(*inputs, grad_reference, grad_source[None], ctx.groups)
        return (
            grad_reference.permute(0, 3, 1, 2),
            grad_source.to(source.dtype).permute(0, 3, 1, 2),
            None,
            None,
            None,
        )


class _WarpCorrelationViews(torch.autograd.Function):
    """All views of a batch at once: one launch, and one gradient instead of a sum over the views."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, transform: Tensor, depth: Tensor, groups: int, kind: torch.dtype
    ) -> Tensor:
        rows = features.permute(0, 1, 3, 4, 2).contiguous()  # [B, V, H, W, C]; no copy if channels-last
        ctx.save_for_backward(rows, transform, depth)
        ctx.groups = groups
        return _launch_forward(rows[:, 0], rows[:, 1:].transpose(0, 1), transform, depth, groups, kind)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None, None]:
        rows, transform, depth = ctx.saved_tensors
        inputs = (rows[:, 0], rows[:, 1:].transpose(0, 1), transform, depth, grad_output)
        gradient = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        _launch_backward(*inputs, gradient[:, 0], gradient[:, 1:].transpose(0, 1), ctx.groups)
        return gradient.to(rows.dtype).permute(0, 1, 4, 2, 3), None, None, None, None


def _launch_forward(
    reference: Tensor,  # [B, H, W, C]
    sources: Tensor,  # [S, B, h, w, C]
    transform: Tensor,  # [S, B, 12]
    depth: Tensor,  # [B, D, H, W]
    groups: int,
    kind: torch.dtype | None = None,
) -> Tensor:  # [S, B, D, H, W, G]
    bins, height, width = depth.shape[1:]
    channels = reference.shape[-1]
    shape = (len(sources), len(reference), bins, height, width, groups)
    output = reference.new_empty(shape, dtype=kind or reference.dtype)
    _forward_kernel[_grid(reference)](
        reference, sources, transform, depth, output, *_arguments(reference, sources, bins),
        C=channels, G=groups, BLOCK=_block(channels),
    )  # fmt: skip
    return output


def _launch_backward(
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
        C=channels, G=groups, BLOCK=_block(channels),
    )  # fmt: skip


def rows_of_channels(features: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, H, W, C] whose images are contiguous; batches may lie apart (one view of many)."""
    last = features.permute(0, 2, 3, 1)
    return last if last[0].is_contiguous() else last.contiguous()


def _block(channels: int) -> int:
    return max(16, 1024 // channels)


def _grid(reference: Tensor) -> tuple[int, int]:
    batch, height, width, channels = reference.shape
    return triton.cdiv(height * width, _block(channels)), batch


def _arguments(reference: Tensor, sources: Tensor, bins: int) -> tuple[int, ...]:
    strides = (reference.stride(0), sources.stride(1), sources.stride(0))
    return (*strides, *reference.shape[1:3], *sources.shape[2:4], bins, len(sources))


def supported(reference: Tensor, depth: Tensor, groups: int) -> bool:
    """Channels and groups must be powers of two, and nobody may ask for the depth's gradient."""
    channels = reference.shape[1]
    powers = channels & (channels - 1) == 0 and groups & (groups - 1) == 0
    return powers and not depth.requires_grad


def warp_correlation(
    reference: Tensor, source: Tensor, matrix: Tensor, offset: Tensor, depth: Tensor, groups: int
) -> Tensor:
    """Same contract as gbinet.model.warp.warp_correlation_plain, gradients to both feature maps."""
    transform = torch.cat([matrix.flatten(1), offset], dim=1).contiguous()  # [B, 12]
    result: Tensor = _WarpCorrelation.apply(reference, source, transform, depth.contiguous(), groups)
    return result


def warp_correlation_views(
    features: Tensor,  # [B, V, C, H, W]; view 0 is the reference
    matrices: Tensor,  # [B, V - 1, 3, 3]
    offsets: Tensor,  # [B, V - 1, 3]
    depth: Tensor,  # [B, D, H, W]
    groups: int,
    kind: torch.dtype,  # of the result; sums are float32
) -> Tensor:  # [V - 1, B, D, H, W, G]
    """The correlation volumes of all source views; see warp_correlation."""
    transform = torch.cat([matrices.flatten(2), offsets], dim=2).transpose(0, 1).contiguous()  # [S, B, 12]
    result: Tensor = _WarpCorrelationViews.apply(features, transform, depth.contiguous(), groups, kind)
    return result
