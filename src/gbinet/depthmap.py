"""A depth map with its camera."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import InputError


@dataclass(frozen=True)
class DepthMap:
    """Depth (z) of every pixel of one view; 0 means unknown."""

    depth: Tensor  # [H, W] float32
    camera: Camera  # of this very map: same width and height
    confidence: Tensor | None = None  # [H, W] float32 in [0, 1]

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
        """World points of all pixels, [H, W, 3]; meaningless where depth is unknown."""
        camera = self.camera.to(self.depth.device, self.depth.dtype)
        height, width = self.depth.shape
        flat = camera.unproject(camera.pixel_grid().reshape(-1, 2), self.depth.reshape(-1))
        return flat.reshape(height, width, 3)
