"""Image, camera, depth and mask of a view change together, so that every pixel keeps its ray.

Depth and mask are sampled with nearest neighbour only: a mean of two depths lies on neither surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gbinet.camera import Camera, pixel_centres
from gbinet.errors import InputError


@dataclass(frozen=True)
class Frame:
    """Pixels of one view with the camera that they belong to."""

    image: Tensor  # [3, H, W] uint8, or float in [0, 1]
    camera: Camera
    depth: Tensor | None = None  # [H, W] float32, 0 = unknown
    mask: Tensor | None = None  # [H, W] bool, False = ignore

    @property
    def width(self) -> int:
        return self.image.shape[-1]

    @property
    def height(self) -> int:
        return self.image.shape[-2]


def resize(frame: Frame, width: int, height: int) -> Frame:
    """Resize to exactly width x height."""
    if (frame.width, frame.height) == (width, height):
        return frame
    image = F.interpolate(
        frame.image[None], (height, width), mode="bilinear", align_corners=False, antialias=True
    )[0]
    return Frame(
        image,
        frame.camera.resized(width, height),
        None if frame.depth is None else resize_nearest(frame.depth, width, height),
        None if frame.mask is None else resize_nearest(frame.mask, width, height),
    )


def resize_nearest(values: Tensor, width: int, height: int) -> Tensor:
    """[H, W] of any type -> [height, width]: a new pixel takes the old pixel that its centre falls into."""
    old_height, old_width = values.shape
    ys = pixel_centres(height, 1, dtype=torch.float64)[:, 0, 1] * (old_height / height)
    xs = pixel_centres(1, width, dtype=torch.float64)[0, :, 0] * (old_width / width)
    return values[ys.long().clamp(max=old_height - 1)[:, None], xs.long().clamp(max=old_width - 1)]


def crop(frame: Frame, left: int, top: int, width: int, height: int) -> Frame:
    """Cut a window out of the frame."""
    if not (0 <= left <= frame.width - width and 0 <= top <= frame.height - height):
        raise InputError(
            f"a window of {width}x{height} at ({left}, {top}) leaves the image, "
            f"which is {frame.width}x{frame.height}"
        )
    rows, columns = slice(top, top + height), slice(left, left + width)
    return Frame(
        frame.image[:, rows, columns],
        frame.camera.cropped(left, top, width, height),
        None if frame.depth is None else frame.depth[rows, columns],
        None if frame.mask is None else frame.mask[rows, columns],
    )


def centre_crop(frame: Frame, width: int, height: int) -> Frame:
    return crop(frame, (frame.width - width) // 2, (frame.height - height) // 2, width, height)


def cover(frame: Frame, width: int, height: int) -> Frame:
    """Scale so that the frame just covers width x height, then cut what sticks out on both sides."""
    factor = max(width / frame.width, height / frame.height)
    scaled_width = max(width, round(frame.width * factor))
    scaled_height = max(height, round(frame.height * factor))
    return centre_crop(resize(frame, scaled_width, scaled_height), width, height)


def depth_pyramid(values: Tensor, divisors: Sequence[int] = (8, 4, 2, 1)) -> tuple[Tensor, ...]:
    """[..., H, W] depth or mask at the scales 1/divisor, nearest neighbour.

    The centre of a coarse pixel is a corner of four fine ones; the lower right of them is taken, which is
    torch's "nearest-exact". (Its mode "nearest" takes the block's first pixel, nearly half a block away.)
    """
    height, width = values.shape[-2:]
    for divisor in divisors:
        if divisor < 1 or height % divisor or width % divisor:
            raise InputError(f"a map of {width}x{height} cannot be divided by {divisor}")
    return tuple(values[..., d // 2 :: d, d // 2 :: d] for d in divisors)


@dataclass(frozen=True)
class ColourJitter:
    """Random changes of colour; a strength s draws a factor from [1 - s, 1 + s]; 0 changes nothing."""

    brightness: float = 0.0
    contrast: float = 0.0  # about the image's mean grey
    saturation: float = 0.0  # about each pixel's own grey

    def __post_init__(self) -> None:
        strengths = (self.brightness, self.contrast, self.saturation)
        if not all(0 <= s < 1 for s in strengths):
            raise InputError(f"strengths of colour jitter lie in [0, 1), got {strengths}")

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """images [V, 3, H, W] float in [0, 1]; every view gets its own factors."""
        strengths = (self.brightness, self.contrast, self.saturation)
        # Drawn even where a strength is 0, so that the other random choices do not depend on these settings.
        drawn = 1 + rng.uniform(-1, 1, (3, len(images))) * np.array(strengths)[:, None]
        if not any(strengths):
            return images
        brightness, contrast, saturation = torch.from_numpy(drawn).to(images)[..., None, None, None]
        images = (images * brightness).clamp(0, 1)
        images = torch.lerp(_grey(images).mean((-1, -2), keepdim=True), images, contrast).clamp(0, 1)
        return torch.lerp(_grey(images), images, saturation).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    """[V, 3, H, W] -> luminance [V, 1, H, W]."""
    weights = images.new_tensor([0.299, 0.587, 0.114])[:, None, None]
    return (images * weights).sum(1, keepdim=True)
