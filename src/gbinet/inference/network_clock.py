"""Seconds in the network; on a GPU, which computes asynchronously, too."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MOST_QUEUED = 3  # calls of the network on the GPU: keeps it busy without much memory


class NetworkClock:
    """Adds up the time of calls of the network. On CUDA, the host runs at most a few calls ahead."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._running = deque[tuple[torch.cuda.Event, torch.cuda.Event]]()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the block, which calls the network."""
        if self._device.type != "cuda":
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began
            return
        begin, end = (_event() for _ in range(2))
        stream = torch.cuda.current_stream(self._device)
        begin.record(stream)
        yield
        end.record(stream)
        self._running.append((begin, end))
        while len(self._running) > _MOST_QUEUED:
            self._finish_one()

    def taken(self, wait: bool = False) -> float:
        """Seconds of finished calls since the last query; wait: of all calls, when they are finished."""
        while wait and self._running:
            self._finish_one()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _finish_one(self) -> None:
        begin, end = self._running.popleft()
        end.synchronize()
        self._seconds += begin.elapsed_time(end) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
