"""Tensors on their way to a device, while nobody waits for it."""

from __future__ import annotations

import torch
from torch import Tensor


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
