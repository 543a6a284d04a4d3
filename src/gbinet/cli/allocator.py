"""Memory that is freed is kept for the next tensor, not handed back to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_LARGE = 1 << 30


def keep_freed_memory() -> None:
    """glibc gives every large block back and fetches it anew, page by page, each cleared by the system.

    On a CPU that was a quarter of the processor time (docs/benchmarks/speed.md). Other C libraries and
    systems stay as they are. inference.device.give_back_memory still works.

    Every thread would keep memory of its own, whether it works or not: twenty of them read, write and paint
    with 790 MiB beyond the program's own. Two heaps for all of them hold 450, and no thread waits for them.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL(None)
        if not libc.mallopt(_MMAP_THRESHOLD, _LARGE):
            libc.mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that older versions take
        libc.mallopt(_TRIM_THRESHOLD, _LARGE)
        libc.mallopt(_ARENA_MAX, 2)
