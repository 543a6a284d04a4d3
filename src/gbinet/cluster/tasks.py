"""Small pieces of work that any machine of a cluster can do beside its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gbinet.cluster.session import Cluster

_WAITING = 4  # pieces per machine that may wait
_RETRIES = 3  # on other machines, where there are others


class Tasks:
    """`submit` begins a piece; `finish` waits for all of them. Errors come with either."""

    def __init__(self, cluster: Cluster) -> None:
        self._ray = cluster.ray
        machines = sum(1 for node in self._ray.nodes() if node["Alive"])
        self._limit = _WAITING * max(1, machines)
        self._waiting: deque[Any] = deque()

    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        # No core of their own: these are all taken by workers, which wait for the driver while it waits here.
        options = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "max_retries": _RETRIES}
        task = self._ray.remote(**options, retry_exceptions=True)(function)
        self._waiting.append(task.remote(*arguments))
        while len(self._waiting) > self._limit:
            self._ray.get(self._waiting.popleft())

    def finish(self) -> None:
        while self._waiting:
            self._ray.get(self._waiting.popleft())
