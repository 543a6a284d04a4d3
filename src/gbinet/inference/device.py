"""Which device and precision to compute with, memory in use, and what running out of it looks like."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch

from gbinet.errors import InputError

Precision = Literal["auto", "float32", "float16", "bfloat16"]
_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def pick_device(name: str = "auto", mps: bool = True) -> torch.device:
    """'auto' is CUDA, then Apple's MPS (unless `mps` is off: it has no float64), then the CPU.

    Any other name is that device, or an InputError if it cannot be used.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if mps and torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # "meta" has no numbers to give back
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # kernels are launched on the current device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device '{name}' cannot be used here ({str(error).splitlines()[0]}); try cpu"
        ) from error
    return device


def pick_precision(name: Precision, device: torch.device) -> torch.dtype:
    """'auto' is float16 on CUDA (depths and positions stay float32), bfloat16 on a CPU that computes with it
    (in a part of the network: see prepare.py), and float32 elsewhere."""
    if name != "auto":
        return _TYPES[name]
    if device.type == "cuda":
        return torch.float16
    return torch.bfloat16 if device.type == "cpu" and _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions: without them it is slower than float32."""
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return bool(native())


# CUDA and Python raise classes of their own; all others only have these words in their messages.
_OUT_OF_MEMORY = (
    "out of memory",  # MPS; CUDA where it is not an OutOfMemoryError
    "can't allocate memory",  # DefaultCPUAllocator on Linux and macOS
    "cannot allocate memory",  # the system's own words, errno 12
    "not enough memory",  # DefaultCPUAllocator on Windows
    "bad_alloc",  # C++
    "bad allocation",  # C++ on Windows
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED
    "alloc_cpu.cpp",
    "unable to mmap",
    # oneDNN gives no reason. It creates these for every new size, and fails where it has no memory for
    # buffers.
    "could not create a primitive",
    "could not create a memory",
    "could not execute a primitive",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):  # numpy's ArrayMemoryError is a MemoryError
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(text in words for text in _OUT_OF_MEMORY)


def give_back_memory(device: torch.device) -> None:
    """Return freed memory to the system; allocators would keep it for later allocations."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc has no such function
            ctypes.CDLL(None).malloc_trim(0)


def peak_memory_mib() -> float:
    """Largest resident memory of this process so far; 0 where the system does not say."""
    # Linux counts what the program that started this one held into ru_maxrss, but not into VmHWM.
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return float(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**10
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, kibibytes elsewhere
