"""Warping source features into the reference view for given depths, and their correlation."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet import kernels
from gbinet.camera import Camera, inverse_3x3, pixel_centres
from gbinet.model.deform import sample
from gbinet.model.layers import multiply_into


def sources_from_reference(cameras: Camera, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """How pixels of the reference (view 0) with depth land in the source views, at a scale of the images.

    cameras [B, V] -> M [B, V - 1, 3, 3] and t [B, V - 1, 3], float32: a reference pixel p = (x, y, 1) with
    depth d lies in source i at M_i p d + t_i, homogeneous. Products are formed in float64 where there is one.
    """
    wide = torch.float32 if cameras.K.device.type == "mps" else torch.float64
    K = cameras.K.to(wide)  # [B, V, 3, 3]
    K = torch.cat([K[..., :2, :] * scale, K[..., 2:, :]], dim=-2)
    pose = cameras.cam_from_world.to(wide)
    rotation, translation = pose[..., :3, :3], pose[..., :3, 3:]
    src_from_ref = _product(rotation[:, 1:], rotation[:, :1].mT)  # [B, V - 1, 3, 3]
    matrix = _product(_product(K[:, 1:], src_from_ref), inverse_3x3(K[:, :1]))
    moved = translation[:, 1:] - _product(src_from_ref, translation[:, :1])
    offset = _product(K[:, 1:], moved)  # [B, V - 1, 3, 1]
    return matrix.float(), offset[..., 0].float()


def travel(cameras: Camera, depth_range: Tensor, scale: float = 1.0) -> Tensor:
    """How far the middle of the reference moves in the source views when its depth goes from near to far.

    cameras [B, V], depth_range [B, 2] -> [B], in pixels at a scale of the images: the median over the
    sources, at most a diagonal of the image.
    """
    matrices, offsets = sources_from_reference(cameras, scale)
    width, height = cameras.width * scale, cameras.height * scale
    across, down, ahead = matrices.unbind(-1)  # columns, [B, V - 1, 3] each
    rays = across * (width / 2) + down * (height / 2) + ahead  # of the middle
    ends = rays[:, :, None] * depth_range[:, None, :, None] + offsets[:, :, None]  # [B, V - 1, 2, 3]
    pixels = ends[..., :2] / ends[..., 2:].clamp_min(1e-6 * depth_range[:, None, 1:, None])
    moved = (pixels[:, :, 1] - pixels[:, :, 0]).square().sum(-1).sqrt()  # [B, V - 1]
    return moved.clamp(max=(width**2 + height**2) ** 0.5).median(1).values


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of small matrices. On a GPU, @ would reserve tens of MiB of working memory for cuBLAS."""
    return (a[..., None] * b[..., None, :, :]).sum(-2)


def source_positions(matrix: Tensor, offset: Tensor, depth: Tensor) -> Tensor:
    """Where reference pixels fall in the source: M [B, 3, 3], t [B, 3], depth [B, D, H, W] -> [..., 2].

    Points on or behind the source's image plane get a position far outside the image.
    """
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
    matrix: Tensor,  # [B, 3, 3]
    offset: Tensor,  # [B, 3]
    depth: Tensor,  # [B, D, H, W] hypotheses in the reference, float32 (or float64)
) -> Tensor:  # [B, C, D, H, W]
    """Source features seen from the reference at each hypothesis: bilinear, zero outside."""
    batch, channels, source_height, source_width = features.shape
    bins, height, width = depth.shape[1:]
    matrix = _to_grid(matrix, source_width, source_height)
    offset = _to_grid(offset, source_width, source_height)
    grid = source_positions(matrix, offset, depth)  # [B, D, H, W, 2]
    warped = sample(features, grid.reshape(batch, bins * height, width, 2))
    return warped.reshape(batch, channels, bins, height, width)


def _to_grid(homogeneous: Tensor, width: int, height: int) -> Tensor:
    """Pixel coordinates in [0, width] x [0, height] -> [-1, 1] x [-1, 1], both homogeneous, [B, 3, ...]."""
    x, y, z = homogeneous.unbind(1)
    return torch.stack([x * (2 / width) - z, y * (2 / height) - z, z], dim=1)


def warp_correlation(
    reference: Tensor,  # [B, C, H, W]
    source: Tensor,  # [B, C, h, w]
    matrix: Tensor,  # [B, 3, 3]
    offset: Tensor,  # [B, 3]
    depth: Tensor,  # [B, D, H, W]
    groups: int,
) -> Tensor:  # [B, G, D, H, W]
    """Group-wise correlation: mean over each group's channels of reference times warped source."""
    if kernels.usable(reference, source, depth):
        from gbinet.kernels import warp as fast

        if fast.supported(reference, depth, groups):
            return fast.warp_correlation(reference, source, matrix, offset, depth, groups)
    return warp_correlation_plain(reference, source, matrix, offset, depth, groups)


def warp_correlation_plain(
    reference: Tensor, source: Tensor, matrix: Tensor, offset: Tensor, depth: Tensor, groups: int
) -> Tensor:
    """The reference of warp_correlation: writes the warped volume."""
    warped = warp(source, matrix, offset, depth)
    product = multiply_into(warped, reference[:, :, None])  # [B, C, D, H, W]
    batch, channels, bins, height, width = product.shape
    return product.reshape(batch, groups, channels // groups, bins, height, width).mean(2)
