"""Parts of an image, worked on side by side on a CPU by threads that compute alone.

torch shares out every small operation by itself and waits for the slowest thread each time; where other work
is on the machine, it waits most of the time. A part is many operations, and a thread that finishes
takes the next part.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

MOST = 16  # threads: more would wait for Python's lock, and each needs memory of its own


def in_bands(work: Callable[[slice], None], height: int, rows: int) -> None:
    """work(rows of a band) for all bands of an image, in any order, without gradients."""
    in_threads(work, [slice(top, min(top + rows, height)) for top in range(0, height, rows)])


def in_threads(work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """What work says of all parts, which are done in any order, without gradients."""
    threads = min(torch.get_num_threads(), MOST)
    if threads == 1 or len(parts) == 1:
        return [work(part) for part in parts]
    mode = torch.is_inference_mode_enabled()  # every thread has its own

    def alone(part: T) -> R:
        with torch.inference_mode(mode), torch.no_grad():
            return work(part)

    return list(_pool(threads).map(alone, parts))  # raises what they raise


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """So many threads, in each of which torch uses one."""
    before, ready = torch.get_num_threads(), threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, "band", initializer=_compute_alone)
    for _ in range(threads):
        pool.submit(ready.wait)
    ready.wait()
    torch.set_num_threads(before)  # of threads that are yet to come; this one's was not touched
    return pool


def _compute_alone() -> None:
    torch.get_num_threads()  # a thread's first question takes over what holds for all
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # a child has no such threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
