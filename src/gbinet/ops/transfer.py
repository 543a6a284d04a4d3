"""Asynchronous copies to a device, and events that tell when a tensor is ready."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, without waiting for the copy: CUDA reads from pinned memory.

    A tensor that is there already may belong to another thread's stream. Its memory is not reused before the
    work of this thread's stream is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor.to(device)


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A new stream, for what should not wait for the network's next work; None where there are no streams."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


class Computed:
    """The moment when a tensor is computed, whose kernels this thread has just launched."""

    def __init__(self, tensor: Tensor) -> None:
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        self._event = None if stream is None else stream.record_event()

    def wait_for(self, value: T) -> T:
        """The value, once that moment has come. Later work of the thread's stream is not waited for."""
        if self._event is not None:
            self._event.synchronize()
        return value
