"""The pixels of a depth map as points of a cloud."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet.depthmap import DepthMap
from gbinet.fusion.consistency import Strip, each_strip
from gbinet.pointcloud import PointCloud


def points_of(
    photo: Tensor | None, depth_map: DepthMap, select: Tensor, num_views: Tensor, position_type: torch.dtype
) -> PointCloud:
    """The selected pixels as a cloud on the CPU."""
    camera = depth_map.camera.to("cpu", torch.float64)
    chosen = select.cpu()
    xyz = camera.unproject(camera.pixel_grid()[chosen], depth_map.depth.cpu()[chosen].double())
    confidence = torch.ones_like(depth_map.depth) if depth_map.confidence is None else depth_map.confidence
    return PointCloud(
        xyz=xyz.to(position_type),
        rgb=colours(photo, depth_map.depth)[select].cpu(),
        normals=_normals(depth_map)[select].cpu(),
        confidence=confidence[select].cpu(),
        num_views=num_views[select].clamp(max=255).to(torch.uint8).cpu(),
    )


def _normals(depth_map: DepthMap, radius: int = 2) -> Tensor:
    """Normals of the whole map, [H, W, 3], computed strip by strip; strips overlap by the window's radius."""
    height, width = depth_map.depth.shape

    def of(part: Strip) -> Tensor:
        rows, _ = part
        top, bottom = max(0, rows.start - radius), min(height, rows.stop + radius)
        camera = depth_map.camera.cropped(0, top, width, bottom - top)
        piece = DepthMap(depth_map.depth[top:bottom], camera).normals(radius)
        return piece[rows.start - top : rows.stop - top]

    return torch.cat(each_strip(of, depth_map))


def empty_cloud(position_type: torch.dtype = torch.float32) -> PointCloud:
    """No points, all columns: what fusion writes has these columns whatever happens."""
    return PointCloud(
        xyz=torch.zeros(0, 3, dtype=position_type),
        rgb=torch.zeros(0, 3, dtype=torch.uint8),
        normals=torch.zeros(0, 3),
        confidence=torch.zeros(0),
        num_views=torch.zeros(0, dtype=torch.uint8),
    )


def colours(photo: Tensor | None, depth: Tensor) -> Tensor:
    """[H, W, 3] uint8: the photo, or grey where it cannot be read."""
    grey = torch.full((*depth.shape, 3), 128, dtype=torch.uint8, device=depth.device)
    return grey if photo is None else photo
