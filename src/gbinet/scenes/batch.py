"""Batches of training samples, each a reference view with its sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import InputError


@dataclass(frozen=True)
class Batch:
    """B samples of V views each; view 0 is the reference. `dataset[i]` is a batch of one."""

    images: Tensor  # [B, V, 3, H, W] float32 in [0, 1]
    cameras: Camera  # [B, V] float32
    depth_range: Tensor  # [B, 2] float32: near, far of the reference
    depth: Tensor  # [B, H, W] float32: true depth of the reference, 0 = unknown (or see `complete`)
    mask: Tensor  # [B, H, W] bool: where the depth is known and counts
    names: tuple[str, ...]  # [B] "scene/view" of the reference
    visible: Tensor | None = None  # [B, V - 1, H, W] bool: whether a source sees the point, if known
    complete: Tensor | None = None  # [B] bool: all depths of the sample are known; then 0 = no surface

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """What DataLoader(pin_memory=True) calls."""
        return self._map(lambda tensor: tensor.pin_memory())

    def tensors(self) -> list[Tensor]:
        cameras = self.cameras
        known = [self.images, cameras.K, cameras.cam_from_world, self.depth_range, self.depth, self.mask]
        return known + [tensor for tensor in (self.visible, self.complete) if tensor is not None]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        cameras = replace(
            self.cameras,
            K=function(self.cameras.K),
            cam_from_world=function(self.cameras.cam_from_world),
        )
        return Batch(
            images=function(self.images),
            cameras=cameras,
            depth_range=function(self.depth_range),
            depth=function(self.depth),
            mask=function(self.mask),
            names=self.names,
            visible=None if self.visible is None else function(self.visible),
            complete=None if self.complete is None else function(self.complete),
        )


def collate(samples: Sequence[Batch]) -> Batch:
    """One batch from several; all need the same number of views and the same image size."""
    if not samples:
        raise InputError("cannot make a batch of no samples")
    shapes = {tuple(s.images.shape[1:]) for s in samples}
    if len(shapes) > 1:
        raise InputError(
            f"samples of a batch need one shape [V, 3, H, W], got {sorted(shapes)}; "
            "set a size in SampleConfig"
        )
    first = samples[0].cameras
    visible = [s.visible for s in samples if s.visible is not None]
    return Batch(
        images=torch.cat([s.images for s in samples]),
        cameras=Camera(
            torch.cat([s.cameras.K for s in samples]),
            torch.cat([s.cameras.cam_from_world for s in samples]),
            first.width,
            first.height,
        ),
        depth_range=torch.cat([s.depth_range for s in samples]),
        depth=torch.cat([s.depth for s in samples]),
        mask=torch.cat([s.mask for s in samples]),
        names=tuple(name for s in samples for name in s.names),
        visible=torch.cat(visible) if len(visible) == len(samples) else None,
        complete=torch.cat([_completeness(s) for s in samples]),
    )


def _completeness(batch: Batch) -> Tensor:
    """`complete` of a batch, [B] bool; False where it is not given."""
    if batch.complete is not None:
        return batch.complete
    return torch.zeros(len(batch), dtype=torch.bool, device=batch.depth.device)
