"""How many CPU cores there are to use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Number of CPU cores that this process is allowed to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
