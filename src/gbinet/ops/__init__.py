"""Operations of the network: for each the plain reference, kernels, gradient, and the choice between them.

`NAME.py` holds the public function and its plain reference, `NAME_triton.py` the Triton kernels and the
functions that launch them, `NAME_cpu.py` what is faster than the plain reference on a CPU. Triton is
optional: kernel files are imported by the function that chooses them. Only this package asks which kernels
can be used.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

TINY = 1e-30  # least sum of view weights: where all weights are zero, the volume is zero, not NaN


@functools.cache
def _triton_found() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether the Triton kernels can be used for these tensors. GBINET_KERNELS=plain switches them off."""
    return all(t.is_cuda for t in tensors) and _triton_found() and not _switched_off()


def usable_on_cpu(*tensors: Tensor) -> bool:
    """Whether the faster functions for CPUs can be used: float32 at most, and no gradients."""
    on_cpu = all(t.device.type == "cpu" and t.dtype != torch.float64 for t in tensors)
    return on_cpu and not torch.is_grad_enabled() and not _switched_off()


def _switched_off() -> bool:
    return os.environ.get("GBINET_KERNELS", "fast") == "plain"


def recordable(*tensors: Tensor) -> bool:
    """Whether work on these tensors can be recorded as a CUDA graph: the plain references need the host."""
    return usable(*tensors)
