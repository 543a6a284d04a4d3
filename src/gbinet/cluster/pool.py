"""A pool of workers: a free one gets the next group of items, and the items of a lost one go to others.

Items are integers. A group is a run of items that should go to one worker, because they share what it caches.
Its items are sent one by one, so that the rest of a group can still go to another worker.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gbinet import __version__
from gbinet.cluster.session import Cluster
from gbinet.cluster.worker import Answer, Worker
from gbinet.errors import GBiNetError

log = logging.getLogger(__name__)
_IN_FLIGHT = 2  # items that a worker has at a time: one is computed, the other is written or waits
_MAX_DEATHS = 3  # workers that may die at one item, and workers in a row that may fail to start
_MAX_WAIT = 300.0  # s without any worker
_START_TIME = 30.0  # s to wait for workers that are starting, when all others cannot go on
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RESIZE_INTERVAL = 5.0  # s between two checks of the size of the cluster


@dataclass(eq=False)
class _PoolWorker:
    """A worker, as the pool sees it."""

    actor: Any
    node: str = ""  # empty until it is ready
    group: deque[int] = field(default_factory=deque)  # not yet sent
    sent: deque[int] = field(default_factory=deque)


class Pool:
    """Runs a job on workers: `with Pool(...) as pool: for item, value, large in pool.results(groups): ...`"""

    def __init__(self, cluster: Cluster, make: Any, on_gpu: bool) -> None:
        self.ray, self.cluster, self.on_gpu = cluster.ray, cluster, on_gpu
        self.cores = 1 if on_gpu else cluster.worker_cores()
        self.lost: dict[int, str] = {}  # views whose files no machine can read -> why
        self._make = make  # makes the job, on a worker
        self._workers: list[_PoolWorker] = []
        # Answer -> worker, item (None: start), large.
        self._calls: dict[Any, tuple[_PoolWorker, int | None, Any]] = {}
        self._dismissed = self._failed_starts = 0
        self._last_problem = ""  # why the last worker was lost
        self._last_resize, self._wanted = 0.0, 0
        self._idle_since = time.monotonic()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            self._remove(worker)

    def size(self) -> int:
        """Workers that the cluster has room for."""
        if self.on_gpu:
            return int(self.ray.cluster_resources().get("GPU", 0))
        return sum(cores // self.cores for cores in self.cluster.machines())

    # ---- work ----

    def results(
        self, groups: Sequence[Sequence[int]], ahead: int | None = None
    ) -> Iterator[tuple[int, Any, Any]]:
        """Yield (item, value, large value) for each item once, as they are done.

        With `ahead`, yield in the order of the items. No item is begun that is more than `ahead` beyond the
        next one to be yielded: this bounds the results that wait here or on the machines of the workers.
        """
        order = [item for group in groups for item in group]
        self._queue = deque(deque(group) for group in groups if group)
        self._position = {item: number for number, item in enumerate(order)}
        self._limit = len(order) if ahead is None else ahead
        self._refused: dict[int, set[str]] = {}  # item -> machines that could not do it
        self._problems: dict[int, Answer] = {}  # item -> why, the last time
        self._deaths: dict[int, int] = {}
        waiting: dict[int, tuple[Any, Any]] = {}  # done, but not their turn
        yielded = 0
        while yielded < len(order):
            for item, value, large in self._finished():
                waiting[item] = (value, large)
            while waiting and (ahead is None or order[yielded] in waiting):
                item = next(iter(waiting)) if ahead is None else order[yielded]
                value, large = waiting.pop(item)
                try:
                    fetched = self.ray.get(large)
                except self.ray.exceptions.RayError as error:  # its machine is gone: made again elsewhere
                    self._put_back(deque([item]))
                    log.warning("a result is lost and will be made again: %s", _reason(error))
                    continue
                yielded += 1
                if ahead is not None:
                    self._limit = yielded + ahead
                yield item, value, fetched

    def _finished(self) -> Iterator[tuple[int, Any, Any]]:
        """Send out items, wait for an answer, and yield the results."""
        self._start_workers()
        for worker in self._workers:
            while (
                worker.node
                and len(worker.sent) < _IN_FLIGHT
                and self._find_work(worker)
                and self._may_send(worker)
            ):
                self._send(worker)
        self._check_stuck()
        if not self._calls:
            time.sleep(0.1)
            return
        ready, _ = self.ray.wait(list(self._calls), num_returns=1, timeout=1.0)
        for reference in ready:
            if reference not in self._calls:  # of a worker that was removed just now
                continue
            worker, item, large = self._calls.pop(reference)
            try:
                answer = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                self._died(worker, error)
                continue
            if item is None:
                self._started(worker, *answer)
                continue
            worker.sent.remove(item)
            for message in answer.messages:
                log.warning(message)
            if answer.problem:
                self._failed(worker, item, answer)
            else:
                yield item, answer.value, large

    def _find_work(self, worker: _PoolWorker) -> bool:
        """Give a worker a group if it has none; returns whether it has an item that may be sent now."""
        if worker.group:
            if self._may_take(worker.group[0], worker):
                return True
            # Too early for these. Items of a lost worker may be due instead.
            self._put_back(worker.group)
            worker.group = deque()
        for number, group in enumerate(self._queue):
            if self._position[group[0]] >= self._limit:
                break
            if self._may_take(group[0], worker):
                del self._queue[number]
                worker.group = group
                return True
        # The queue has nothing for it: take half of what the busiest worker has not sent yet.
        busiest = max(self._workers, key=lambda other: len(other.group))
        if len(busiest.group) > 1 and all(self._may_take(item, worker) for item in busiest.group):
            items, half = list(busiest.group), len(busiest.group) // 2
            busiest.group, worker.group = deque(items[:half]), deque(items[half:])
            return True
        return False

    def _put_back(self, group: deque[int]) -> None:
        """Insert a group into the queue, which is in the order of the items."""
        insort(self._queue, group, key=lambda queued: self._position[queued[0]])

    def _may_take(self, item: int, worker: _PoolWorker) -> bool:
        return self._position[item] < self._limit and worker.node not in self._refused.get(item, ())

    def _may_send(self, worker: _PoolWorker) -> bool:
        """An item at which a worker may have died is sent alone: the next death then shows whether it did."""
        return not worker.sent or self._deaths.keys().isdisjoint({*worker.sent, worker.group[0]})

    def _send(self, worker: _PoolWorker) -> None:
        item = worker.group.popleft()
        following = list(worker.group)[:1]
        answer, large = worker.actor.do.options(num_returns=2).remote(item, following, self.lost)
        worker.sent.append(item)
        self._calls[answer] = (worker, item, large)

    # ---- what goes wrong ----

    def _failed(self, worker: _PoolWorker, item: int, answer: Answer) -> None:
        """A worker could not do an item: workers on other machines try it."""
        self._refused.setdefault(item, set()).add(worker.node)
        self._problems[item] = answer
        self._put_back(deque([item]))
        if answer.unreadable is None:  # such as a full disk: the next items would fail there too
            self._last_problem = answer.problem
            self._dismissed += 1
            self._give_back(worker)
            log.warning("a worker is not used any more: %s", answer.problem)

    def _died(self, worker: _PoolWorker, error: Exception) -> None:
        self._last_problem = _reason(error)
        if not worker.node:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_DEATHS and not any(one.node for one in self._workers):
                raise GBiNetError(f"no worker could be started on the cluster: {self._last_problem}")
        for item in worker.sent:
            self._deaths[item] = self._deaths.get(item, 0) + 1
            if self._deaths[item] >= _MAX_DEATHS:
                raise GBiNetError(
                    f"{_MAX_DEATHS} workers died at the same view, most likely for lack of memory; use "
                    f"smaller images (--max-size) or fewer workers (--worker-cores): {self._last_problem}"
                )
        if worker.sent:
            log.warning("a worker died; another one does its work: %s", self._last_problem)
        self._give_back(worker)

    def _give_back(self, worker: _PoolWorker) -> None:
        """Remove a worker, and put its items back into the queue."""
        if worker.group:
            self._put_back(worker.group)
        for item in worker.sent:
            self._put_back(deque([item]))
        self._remove(worker)

    def _remove(self, worker: _PoolWorker) -> None:
        self._workers.remove(worker)
        self._calls = {key: call for key, call in self._calls.items() if call[0] is not worker}
        if self.ray.is_initialized():  # else it is gone already, and `kill` would start a new Ray
            self.ray.kill(worker.actor)

    def _check_stuck(self) -> None:
        """Raise an error, or give up a view, if items are left but none is being computed."""
        if any(worker.sent for worker in self._workers):
            self._idle_since = time.monotonic()
            return
        idle, starting = time.monotonic() - self._idle_since, any(not worker.node for worker in self._workers)
        if any(worker.node for worker in self._workers):
            if not starting or idle > _START_TIME:
                self._give_up_unreadable()
        elif not self._workers and self._dismissed:
            raise GBiNetError(self._last_problem)
        elif idle > _MAX_WAIT:
            what = "GPU was" if self.on_gpu else f"{self.cores} cores were"
            address = self.cluster.config.address
            raise GBiNetError(
                f"--cluster {address}: no {what} free for a worker within {_MAX_WAIT:.0f} s "
                "(`ray status` shows who has them; --worker-cores asks for fewer). "
                f"{self._last_problem}".strip()
            )

    def _give_up_unreadable(self) -> None:
        """All machines have refused an item: if they cannot read a view, do without it from now on."""
        item = next((group[0] for group in self._queue if group[0] in self._refused), None)
        answer = (
            Answer(problem="workers are idle, and work is left") if item is None else self._problems[item]
        )
        if answer.unreadable is None or answer.unreadable in self.lost:
            raise GBiNetError(answer.problem)
        self.lost[answer.unreadable] = answer.problem
        self._refused.clear()
        log.warning(answer.problem)

    # ---- workers ----

    def _start_workers(self) -> None:
        """Start workers up to the size of the cluster; machines may come and go."""
        if time.monotonic() - self._last_resize > _RESIZE_INTERVAL:
            self._last_resize, self._wanted = time.monotonic(), self.size()
        if self._failed_starts >= _MAX_DEATHS:
            return
        while len(self._workers) < self._wanted - self._dismissed:
            resources = {"num_cpus": self.cores, **({"num_gpus": 1} if self.on_gpu else {})}
            # A call of each kind: while one item is written, the next one is computed.
            options = {**resources, "max_concurrency": _IN_FLIGHT + 1, "max_restarts": 0}
            worker = _PoolWorker(self.ray.remote(Worker).options(**options).remote(self._make))
            self._workers.append(worker)
            self._calls[worker.actor.ready.remote()] = (worker, None, None)

    def _started(self, worker: _PoolWorker, node: str, version: str) -> None:
        if version != __version__:
            raise GBiNetError(f"a machine of the cluster has gbinet {version}, this one has {__version__}")
        worker.node = node
        self._failed_starts = 0


def in_groups(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _reason(error: Exception) -> str:
    """Ray's text begins with names and traces, in colours; its last line says why, and then guesses."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines()]
    last = next((line for line in reversed(lines) if line), type(error).__name__)
    return last.partition(" Some common causes include:")[0]
