"""Softmax over bins that gives the same digits whatever the number of threads."""

from __future__ import annotations

import torch
from torch import Tensor


def reproducible_softmax(logits: Tensor) -> Tensor:
    """Softmax over axis 1. logits [B, D, h, w] float32.

    On a CPU, torch's softmax rounds the ends of each thread's part of the image differently: confidences
    would depend on the machine, and clouds by a point or two. Training does not care.
    """
    if logits.device.type != "cpu" or torch.is_grad_enabled():
        return logits.softmax(1)
    exponentials = (logits - logits.amax(1, keepdim=True)).exp_()
    return exponentials.div_(exponentials.sum(1, keepdim=True))
