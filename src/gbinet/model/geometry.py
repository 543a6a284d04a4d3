"""Projection of the reference's pixels into the source views: all that the network knows of cameras."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from gbinet.camera import Camera, inverse_3x3, pixel_centres


def sources_from_reference(cameras: Camera) -> Tensor:
    """Transforms from pixels of the reference (view 0) with depth to pixels of the source views.

    cameras [B, V] -> [B, V - 1, 12] float32, M row by row and then t: a reference pixel p = (x, y, 1) with
    depth d is projected to M_i p d + t_i in source i, homogeneous. Computed in float64, except on MPS.
    """
    dtype = torch.float32 if cameras.K.device.type == "mps" else torch.float64
    K = cameras.K.to(dtype)  # [B, V, 3, 3]
    pose = cameras.cam_from_world.to(dtype)
    rotation, translation = pose[..., :3, :3], pose[..., :3, 3:]
    src_from_ref = _product(rotation[:, 1:], rotation[:, :1].mT)  # [B, V - 1, 3, 3]
    matrix = _product(_product(K[:, 1:], src_from_ref), inverse_3x3(K[:, :1]))
    shift = translation[:, 1:] - _product(src_from_ref, translation[:, :1])
    offset = _product(K[:, 1:], shift)  # [B, V - 1, 3, 1]
    return torch.cat([matrix.float().flatten(2), offset[..., 0].float()], dim=2)


def disparity_span(cameras: Camera, depth_range: Tensor, scale: float = 1.0) -> Tensor:
    """How far the reference's middle pixel moves in the source views as its depth goes from near to far.

    cameras [B, V], depth_range [B, 2] -> [B], in pixels of images resized by `scale`: the median over the
    sources, at most a diagonal of the image.
    """
    transforms = sources_from_reference(cameras)  # [B, V - 1, 12]
    matrices, offsets = transforms[..., :9], transforms[..., 9:]
    width, height = cameras.width, cameras.height
    columns = matrices.reshape(*matrices.shape[:2], 3, 3).unbind(-1)  # [B, V - 1, 3] each
    rays = columns[0] * (width / 2) + columns[1] * (height / 2) + columns[2]  # of the middle
    ends = rays[:, :, None] * depth_range[:, None, :, None] + offsets[:, :, None]  # [B, V - 1, 2, 3]
    pixels = ends[..., :2] / ends[..., 2:].clamp_min(1e-6 * depth_range[:, None, 1:, None])
    distance = (pixels[:, :, 1] - pixels[:, :, 0]).square().sum(-1).sqrt()  # [B, V - 1]
    diagonal = (width**2 + height**2) ** 0.5
    return scale * distance.clamp(max=diagonal).median(1).values


RIGHT = 1.0  # px: the largest reprojection error of a depth that counts as right


def is_right(depth: Tensor, truth: Tensor, cameras: Camera) -> Tensor:
    """Whether depths are right: the definition that confidence is trained on, calibrated to and measured by.

    depth, truth [B, H, W] of the reference, cameras [B, V] -> [B, H, W] bool. A pixel's point and its true
    point are projected at most 1 px apart by the median source (of an even number: the lower of the two).
    """
    transforms = sources_from_reference(cameras)  # [B, V - 1, 12]
    matrices, offsets = transforms[..., :9], transforms[..., 9:, None, None]
    columns = matrices.reshape(*matrices.shape[:2], 3, 3, 1, 1).unbind(3)  # [B, V - 1, 3, 1, 1] each
    x, y = pixel_centres(*depth.shape[-2:], device=depth.device).unbind(-1)  # [H, W] each
    # Per row first, because operations on [B, V - 1, 3, H, W] are expensive.
    rays = torch.addcmul(columns[1] * y[:, :1] + columns[2], columns[0], x[:1])
    least = 1e-6 * truth[:, None, None]  # points behind a source end up far outside its image

    def projected(z: Tensor) -> Tensor:
        """Positions of points at a depth [B, H, W] in the sources, [B, V - 1, 2, H, W]."""
        points = torch.addcmul(offsets, rays, z[:, None, None])
        return points[:, :, :2] / points[:, :, 2:].clamp_min(least)

    squared_error = (projected(depth) - projected(truth)).square().sum(2)  # [B, V - 1, H, W]
    return lower_median(squared_error) <= RIGHT**2


def lower_median(values: Tensor) -> Tensor:
    """values.median(1).values of [B, N, ...] with a small N, by comparisons of whole maps.

    torch's own takes a hundred times as long on a GPU. NaN where one of the values is NaN.
    """
    rest = list(values.unbind(1))
    for _ in range((len(rest) - 1) // 2):  # drop the least
        least = rest.pop(0)
        for i, value in enumerate(rest):
            least, rest[i] = torch.minimum(least, value), torch.maximum(least, value)
    return functools.reduce(torch.minimum, rest)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of small matrices. On a GPU, @ would reserve tens of MiB of working memory for cuBLAS."""
    return (a[..., None] * b[..., None, :, :]).sum(-2)
