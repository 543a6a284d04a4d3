"""Seconds in the network, on a GPU too, which computes while its host goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_AHEAD = 3  # network calls queued on the GPU: keeps it busy without holding much memory


class NetworkClock:
    """Adds up the time of calls of the network. On CUDA the host goes on, a few calls ahead at most."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._running = deque[tuple[torch.cuda.Event, torch.cuda.Event]]()

    @contextmanager
    def running(self) -> Iterator[None]:
        """The block calls the network."""
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
        while len(self._running) > _AHEAD:
            self._finish_one()

    def taken(self, wait: bool = False) -> float:
        """Seconds of calls that are done, each told once; all of them where one waits for them."""
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
