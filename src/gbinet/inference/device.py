"""Which device and precision to compute with, memory in use, and what running out of it looks like."""

from __future__ import annotations

import sys
from typing import Literal

import torch

from gbinet.errors import InputError

Precision = Literal["auto", "float32", "float16", "bfloat16"]
_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def pick_device(name: str = "auto") -> torch.device:
    """'auto' takes CUDA, then Apple's MPS, then the CPU; anything else is taken at its word, if it exists."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device '{name}' cannot be used here ({str(error).splitlines()[0]}); try cpu"
        ) from error
    return device


def pick_precision(name: Precision, device: torch.device) -> torch.dtype:
    """'auto' is float16 on CUDA (depths and positions stay float32) and float32 elsewhere."""
    if name == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    return _TYPES[name]


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a class of its own; the CPU and MPS allocators only say so in words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in words or "can't allocate memory" in words)


def peak_memory_mib() -> float:
    """Largest resident memory of this process so far; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, kibibytes elsewhere
