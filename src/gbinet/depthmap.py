"""A depth map with its camera."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import InputError


@dataclass(frozen=True)
class DepthMap:
    """Depth of every pixel of one view, with its camera.

    Attributes:
        depth: z of the camera frame, [H, W] float32, in the scene's unit; 0 means unknown.
        camera: The camera of this very map: same width and height.
        confidence: [H, W] float32 in [0, 1], or None. With the bundled weights, the probability that a
            pixel's depth is right: projected into the source views, its point is at most one pixel off.
        made_by: What predicted it, where its file says so; None for the truth.

    Raises:
        InputError: If the shapes do not fit the camera.

    Example:
        >>> import torch
        >>> from gbinet import Camera, DepthMap
        >>> K = torch.tensor([[100.0, 0, 64], [0, 100.0, 48], [0, 0, 1]])
        >>> wall = DepthMap(torch.full((96, 128), 2.0), Camera(K, torch.eye(4), width=128, height=96))
        >>> wall.points().shape, bool(wall.valid.all())
        (torch.Size([96, 128, 3]), True)
    """

    depth: Tensor  # [H, W] float32
    camera: Camera
    confidence: Tensor | None = None  # [H, W] float32
    made_by: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        expected = (self.camera.height, self.camera.width)
        if tuple(self.depth.shape) != expected:
            raise InputError(
                f"depth map is {list(self.depth.shape)}, its camera says {list(expected)} (H, W)"
            )
        if self.confidence is not None and self.confidence.shape != self.depth.shape:
            raise InputError(
                f"confidence is {list(self.confidence.shape)}, the depth map {list(self.depth.shape)}"
            )

    @property
    def valid(self) -> Tensor:
        """[H, W] bool: where depth is known."""
        return (self.depth > 0) & torch.isfinite(self.depth)

    def points(self) -> Tensor:
        """Return the world points of all pixels, [H, W, 3]; meaningless where depth is unknown."""
        camera = self.camera.to(self.depth.device, self.depth.dtype)
        height, width = self.depth.shape
        flat = camera.unproject(camera.pixel_grid().reshape(-1, 2), self.depth.reshape(-1))
        return flat.reshape(height, width, 3)

    def normals(self, radius: int = 2, max_jump: float = 0.03) -> Tensor:
        """Estimate surface normals.

        Args:
            radius: Of the window around each pixel, in pixels.
            max_jump: Neighbours count whose depth differs by less than this share.

        Returns:
            Unit normals in the world, towards the camera, [H, W, 3]; 0 where neighbours are too few.
        """
        # Along a plane, inverse depth is affine in the pixel: q = (a, b, c) . (u, v, 1). The plane's normal
        # is -K^T (a, b, c). The three are fitted by least squares over the neighbours that count.
        camera = self.camera.to(self.depth.device, torch.float32)
        depth = torch.where(self.valid, self.depth, 0).float()
        height, width = depth.shape
        padded = torch.nn.functional.pad(depth[None, None], [radius] * 4)[0, 0]  # [H + 2 r, W + 2 r]
        # Sums over the window, [H, W] each: of 1, u, v, u^2, u v, v^2, q, q u, q v.
        s1, su, sv, suu, suv, svv, sq, squ, sqv = torch.zeros(9, height, width, device=depth.device)
        for dv in range(-radius, radius + 1):
            for du in range(-radius, radius + 1):
                other = padded[radius + dv :, radius + du :][:height, :width]
                w = ((other - depth).abs() < max_jump * depth).float()  # false where either is unknown
                q = w * depth / other.clamp(min=1e-30)  # inverse depth, as a multiple of the centre's
                s1, su, sv = s1 + w, su + w * du, sv + w * dv
                suu, suv, svv = suu + w * du * du, suv + w * du * dv, svv + w * dv * dv
                sq, squ, sqv = sq + q, squ + q * du, sqv + q * dv
        count = s1.clamp(min=1)
        # The same sums about the mean: covariances times the count.
        cuu, cuv, cvv = suu - su * su / count, suv - su * sv / count, svv - sv * sv / count
        cqu, cqv = squ - sq * su / count, sqv - sq * sv / count
        determinant = cuu * cvv - cuv * cuv
        fitted = determinant > 0.1  # three neighbours on one line span no plane
        a = torch.where(fitted, (cqu * cvv - cqv * cuv) / determinant, 0)
        b = torch.where(fitted, (cqv * cuu - cqu * cuv) / determinant, 0)
        at_pixel = (sq - a * su - b * sv) / count
        u, v = camera.pixel_grid().unbind(-1)
        normals_cam = -torch.stack([a, b, at_pixel - a * u - b * v], dim=-1) @ camera.K  # rows: K^T n
        normals = torch.nn.functional.normalize(normals_cam @ camera.cam_from_world[:3, :3], dim=-1)
        return torch.where(fitted[..., None], normals, 0)
