"""Checks of the network's input: bad input is an error that names it, not a meaningless depth map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import torch
from torch import Tensor, nn

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.model.config import Readout
from gbinet.scene import DepthRange


def check_shapes(images: Tensor, cameras: Camera, layout: str) -> None:
    """Check what fits together without reading values, which would wait for a GPU. layout: of the images."""
    _check_type(images, Tensor, f"images must be a tensor {layout}")
    _check_type(cameras, Camera, "cameras must be one Camera for all views; Camera.stack makes it of several")
    axes = layout.count(",") + 1
    if images.dim() != axes or images.shape[-3] != 3:
        raise InputError(f"images must be {layout}, got {list(images.shape)}")
    views = images.shape[-4]
    if views < 2:
        raise InputError(f"depth needs at least 2 views of one place: a reference and a source, got {views}")
    if cameras.batch_shape != images.shape[:-3]:
        raise InputError(
            f"images are {list(images.shape[:-3])} views but cameras are {list(cameras.batch_shape)}"
        )
    if (cameras.height, cameras.width) != tuple(images.shape[-2:]):
        raise InputError(
            f"images are {images.shape[-1]}x{images.shape[-2]} but their cameras say "
            f"{cameras.width}x{cameras.height}; resize both together"
        )
    if not images.is_floating_point():
        raise InputError(f"images must be float in [0, 1], got {images.dtype}: divide by 255 first")


def check_ranges(depth_range: Tensor, samples: int) -> None:
    if depth_range.shape != (samples, 2):
        raise InputError(
            f"depth_range must be near and far of each sample, [{samples}, 2], got {list(depth_range.shape)}"
        )


def check_choices(stages: int, done: int, readout: str) -> None:
    if stages <= done:
        raise InputError(f"stages must be at least {done + 1}, got {stages}")
    if readout not in get_args(Readout):
        raise InputError(f"unknown readout '{readout}'; choose one of {', '.join(get_args(Readout))}")


def check_values(images: Tensor, cameras: Camera, depth_range: DepthRange) -> None:
    """Check that all values are possible, and name the view otherwise. images [V, 3, H, W], cameras [V]."""
    _check_type(depth_range, DepthRange, "depth_range must be a DepthRange(near, far)")
    finite = torch.isfinite(images).flatten(1).all(1)
    if not bool(finite.all()):
        raise InputError(f"image {int((~finite).nonzero()[0])} has a value that is not finite")
    largest = float(images.amax())
    if largest > 2:  # resampling may overshoot 1 a little; this is another unit
        raise InputError(f"images must be in [0, 1], got values up to {largest:g}: divide by 255 first?")
    cameras.check()


def _check_type(value: object, wanted: type, expected: str) -> None:
    """For users without a type checker."""
    if not isinstance(value, wanted):
        raise InputError(f"{expected}, got {type(value).__name__}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; the mode is restored afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
