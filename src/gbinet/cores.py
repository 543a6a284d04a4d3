"""How many cores of the CPU there are to use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Of the CPU, as far as this process may use them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
