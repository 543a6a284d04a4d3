"""Asynchronous copies to a device, and events that tell when a tensor is ready."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for it: from pinned memory where it is CUDA.

    What is there already may belong to another thread's stream. It is not given to others before the work of
    this thread's stream is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor.to(device)


def stream_beside(device: torch.device) -> torch.cuda.Stream | None:
    """For what should not wait for the work that comes after it; None where there are no streams."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


class Computed:
    """The moment when a tensor is computed that a thread has just asked the GPU for."""

    def __init__(self, tensor: Tensor) -> None:
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        self._event = None if stream is None else stream.record_event()

    def wait_for(self, value: T) -> T:
        """The value, from that moment on: the work of other threads does not wait for that of this one."""
        if self._event is not None:
            self._event.synchronize()
        return value
