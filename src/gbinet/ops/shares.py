"""Softmax over bins that gives the same digits whatever the number of threads."""

from __future__ import annotations

import torch
from torch import Tensor


def shares(logits: Tensor) -> Tensor:
    """[B, D, h, w] float32 -> positive, with sum 1 over D.

    On a CPU, torch's softmax over an inner axis rounds the ends of each thread's part of the image in another
    way: confidences would depend on the machine, and clouds by a point or two. Training need not care.
    """
    if logits.device.type != "cpu" or torch.is_grad_enabled():
        return logits.softmax(1)
    raised = (logits - logits.amax(1, keepdim=True)).exp_()
    return raised.div_(raised.sum(1, keepdim=True))
