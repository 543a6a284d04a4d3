"""Small tasks that any machine of a cluster can do beside its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gbinet.cluster.session import Cluster

_MAX_PENDING = 4  # tasks per machine
_RETRIES = 3  # on other machines, where there are others


class Tasks:
    """Runs tasks on the cluster: `submit` begins one, `finish` waits for all. Both raise errors of tasks."""

    def __init__(self, cluster: Cluster) -> None:
        self._ray = cluster.ray
        machines = sum(1 for node in self._ray.nodes() if node["Alive"])
        self._limit = _MAX_PENDING * max(1, machines)
        self._pending: deque[Any] = deque()

    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        # No core of their own: these are all taken by workers, which wait for the driver while it waits here.
        options = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "max_retries": _RETRIES}
        task = self._ray.remote(**options, retry_exceptions=True)(function)
        self._pending.append(task.remote(*arguments))
        while len(self._pending) > self._limit:
            self._ray.get(self._pending.popleft())

    def finish(self) -> None:
        while self._pending:
            self._ray.get(self._pending.popleft())
