"""Warping source features into the reference view for given depths, and their correlation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gbinet import ops
from gbinet.camera import pixel_centres
from gbinet.ops.bilinear import sample
from gbinet.ops.layout import pixel_rows

# A transform is twelve numbers, M row by row and then t: a reference pixel p = (x, y, 1) with depth d is
# projected to M p d + t in the source, homogeneous. model/geometry.py computes them from cameras.


def at_scale(transforms: Tensor, scale: int) -> Tensor:
    """Transforms [..., 12] of images -> of maps `scale` times smaller; exact for powers of two."""
    if scale == 1:
        return transforms
    smaller = transforms.clone()
    smaller[..., 2:6:3] /= scale
    smaller[..., 6:8] *= scale
    smaller[..., 9:11] /= scale
    return smaller


def source_positions(transform: Tensor, depth: Tensor) -> Tensor:
    """Positions of reference pixels in the source: transform [B, 12], depth [B, D, H, W] -> [B, D, H, W, 2].

    Points on or behind the source's image plane get a position far outside the image.
    """
    matrix, offset = transform[:, :9].reshape(-1, 3, 3), transform[:, 9:]
    return _positions(matrix, offset, depth)


def _positions(matrix: Tensor, offset: Tensor, depth: Tensor) -> Tensor:
    """matrix [B, 3, 3], offset [B, 3], depth [B, D, H, W] -> [B, D, H, W, 2]."""
    height, width = depth.shape[-2:]
    x, y = pixel_centres(height, width, device=depth.device, dtype=depth.dtype).unbind(-1)  # [H, W] each
    a, b, c = matrix.to(depth.dtype)[..., None, None, None].unbind(2)  # columns of M, [B, 3, 1, 1, 1] each
    rays = a * x + b * y + c  # [B, 3, 1, H, W]
    points = torch.addcmul(offset.to(depth.dtype)[..., None, None, None], rays, depth[:, None])
    x, y, z = points.unbind(1)  # [B, D, H, W] each
    in_front = z > 0
    z = torch.where(in_front, z, 1.0)
    return torch.stack([torch.where(in_front, x / z, -1e6), y / z], dim=-1)


def warp(
    features: Tensor,  # [B, C, h, w] of the source
    transform: Tensor,  # [B, 12]
    depth: Tensor,  # [B, D, H, W] hypotheses in the reference, float32 (or float64)
) -> Tensor:  # [B, C, D, H, W]
    """Source features seen from the reference at each hypothesis: bilinear, zero outside."""
    batch, channels, source_height, source_width = features.shape
    bins, height, width = depth.shape[1:]
    matrix = _to_grid(transform[:, :9].reshape(-1, 3, 3), source_width, source_height)
    offset = _to_grid(transform[:, 9:], source_width, source_height)
    grid = _positions(matrix, offset, depth)  # [B, D, H, W, 2]
    warped = sample(features, grid.reshape(batch, bins * height, width, 2))
    return warped.reshape(batch, channels, bins, height, width)


def _to_grid(homogeneous: Tensor, width: int, height: int) -> Tensor:
    """Pixel coordinates in [0, width] x [0, height] -> [-1, 1] x [-1, 1], both homogeneous, [B, 3, ...]."""
    x, y, z = homogeneous.unbind(1)
    return torch.stack([x * (2 / width) - z, y * (2 / height) - z, z], dim=1)


def warp_correlation(
    reference: Tensor,  # [B, C, H, W]
    source: Tensor,  # [B, C, h, w]
    transform: Tensor,  # [B, 12]
    depth: Tensor,  # [B, D, H, W]
    groups: int,
) -> Tensor:  # [B, G, D, H, W]
    """Group-wise correlation: mean over each group's channels of reference times warped source."""
    if ops.usable(reference, source, depth) and suits(reference, depth, groups):
        return warp_correlation_fast(reference, source, transform, depth, groups)
    return warp_correlation_plain(reference, source, transform, depth, groups)


def warp_correlation_plain(
    reference: Tensor, source: Tensor, transform: Tensor, depth: Tensor, groups: int
) -> Tensor:
    """The plain reference of warp_correlation. It writes the warped volume to memory."""
    warped, target = warp(source, transform, depth), reference[:, :, None]
    product = warped * target if torch.is_grad_enabled() else warped.mul_(target)  # [B, C, D, H, W]
    batch, channels, bins, height, width = product.shape
    return product.reshape(batch, groups, channels // groups, bins, height, width).mean(2)


def suits(reference: Tensor, depth: Tensor, groups: int) -> bool:
    """Whether there are kernels: for powers of two of channels and groups, and no gradient of the depth."""
    channels = reference.shape[1]
    powers = channels & (channels - 1) == 0 and groups & (groups - 1) == 0
    return powers and not depth.requires_grad


def warp_correlation_fast(
    reference: Tensor, source: Tensor, transform: Tensor, depth: Tensor, groups: int
) -> Tensor:
    """The same in one pass, without a warped volume in memory. Gradients go to both feature maps."""
    result: Tensor = _WarpCorrelation.apply(  # type: ignore[no-untyped-call]
        reference, source, transform.contiguous(), depth.contiguous(), groups
    )
    return result


def warp_correlation_views(
    features: Tensor,  # [B, V, C, H, W]; view 0 is the reference
    transforms: Tensor,  # [B, V - 1, 12]
    depth: Tensor,  # [B, D, H, W]
    groups: int,
    dtype: torch.dtype,  # of the result; sums are float32
) -> Tensor:  # [V - 1, B, D, H, W, G]
    """The correlation volumes of all source views by the kernels, which must suit them."""
    views_first = transforms.transpose(0, 1).contiguous()  # [V - 1, B, 12]
    result: Tensor = _WarpCorrelationViews.apply(  # type: ignore[no-untyped-call]
        features, views_first, depth.contiguous(), groups, dtype
    )
    return result


class _WarpCorrelation(torch.autograd.Function):
    """One source view, which may have a size of its own."""

    @staticmethod
    def forward(
        ctx: Any, reference: Tensor, source: Tensor, transform: Tensor, depth: Tensor, groups: int
    ) -> Tensor:
        from gbinet.ops.warp_triton import correlate

        reference, source = pixel_rows(reference), pixel_rows(source)
        output = correlate(reference, source[None], transform, depth, groups)
        ctx.save_for_backward(reference, source, transform, depth)
        ctx.groups = groups
        return output[0].permute(0, 4, 1, 2, 3)  # [B, G, D, H, W] in channels_last_3d layout

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        from gbinet.ops.warp_triton import correlate_backward

        reference, source, transform, depth = ctx.saved_tensors
        upstream = grad_output.permute(0, 2, 3, 4, 1)  # [B, D, H, W, G]
        grad_reference = torch.empty(reference.shape, dtype=reference.dtype, device=reference.device)
        grad_source = torch.zeros(source.shape, dtype=torch.float32, device=source.device)
        inputs = (reference, source[None], transform, depth, upstream)
        correlate_backward(*inputs, grad_reference, grad_source[None], ctx.groups)
        grad_source = grad_source.to(source.dtype)
        return grad_reference.permute(0, 3, 1, 2), grad_source.permute(0, 3, 1, 2), None, None, None


class _WarpCorrelationViews(torch.autograd.Function):
    """All views of a batch at once: one launch, and one gradient instead of a sum over views."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, transform: Tensor, depth: Tensor, groups: int, dtype: torch.dtype
    ) -> Tensor:
        from gbinet.ops.warp_triton import correlate

        rows = features.permute(0, 1, 3, 4, 2).contiguous()  # [B, V, H, W, C]; no copy if channels-last
        ctx.save_for_backward(rows, transform, depth)
        ctx.groups = groups
        return correlate(rows[:, 0], rows[:, 1:].transpose(0, 1), transform, depth, groups, dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None, None]:
        from gbinet.ops.warp_triton import correlate_backward

        rows, transform, depth = ctx.saved_tensors
        inputs = (rows[:, 0], rows[:, 1:].transpose(0, 1), transform, depth, grad_output)
        gradient = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        correlate_backward(*inputs, gradient[:, 0], gradient[:, 1:].transpose(0, 1), ctx.groups)
        return gradient.to(rows.dtype).permute(0, 1, 4, 2, 3), None, None, None, None
