"""Many small pieces of work on a CPU: one thread per piece instead of several threads per operation.

Torch splits every operation among its threads and waits for all of them. For thousands of short operations
the waiting costs more than the work, above all where other programs use the cores too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], pieces: Iterable[T], device: torch.device) -> list[R]:
    """[work(piece) for piece in pieces]; on a CPU several at a time, each on one thread."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        return [work(piece) for piece in pieces]
    inference = torch.is_inference_mode_enabled()  # a mode of this thread, which others do not have

    def alike(piece: T) -> R:
        with torch.inference_mode(inference):
            return work(piece)

    torch.set_num_threads(1)  # threads that start now begin with it
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(alike, pieces))
    finally:
        torch.set_num_threads(threads)
