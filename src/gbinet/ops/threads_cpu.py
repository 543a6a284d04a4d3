"""Parallel work on a CPU: one thread per part of the work, instead of several threads per operation.

torch splits every small operation among its threads and waits for the slowest each time; where other programs
use the cores too, it waits most of the time. Here a part is many operations, and a thread that is done takes
the next part.
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

MOST_THREADS = 16  # more would wait for Python's lock, and each needs memory of its own


def in_bands(work: Callable[[slice], None], height: int, rows: int) -> None:
    """Call work(rows) for all bands of `rows` rows of an image, in any order, without gradients."""
    bands = [slice(top, min(top + rows, height)) for top in range(0, height, rows)]
    in_threads(work, bands, torch.device("cpu"))


def in_threads(work: Callable[[T], R], parts: Sequence[T], device: torch.device) -> list[R]:
    """[work(part) for part in parts]; on a CPU in several threads, in any order, without gradients."""
    threads = min(torch.get_num_threads(), MOST_THREADS)
    if device.type != "cpu" or threads == 1 or len(parts) == 1:
        return [work(part) for part in parts]
    mode = torch.is_inference_mode_enabled()  # a setting of this thread

    def in_same_mode(part: T) -> R:
        with torch.inference_mode(mode), torch.no_grad():
            return work(part)

    return list(_pool(threads).map(in_same_mode, parts))  # raises what they raise


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """A pool of threads in each of which torch itself uses one thread."""
    before, ready = torch.get_num_threads(), threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, "band", initializer=_use_one_thread)
    for _ in range(threads):
        pool.submit(ready.wait)
    ready.wait()
    torch.set_num_threads(before)  # the default of new threads, which those of the pool have changed
    return pool


def _use_one_thread() -> None:
    torch.get_num_threads()  # the first call in a thread would overwrite its number by the default
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
