"""Progress bars for the callbacks of the library."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from gbinet.names import printable
from gbinet.progress import Progress as ProgressCall


@contextmanager
def progress_bar(label: str = "") -> Iterator[ProgressCall]:
    """Yields `progress(done, total, what)`; each `what` has a bar of its own, gone when the block ends."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    console = Console(stderr=True)
    # Into a file or a pipe rich would print an empty line and nothing else.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}
        lines = _Lines(5.0)

        def progress(done: int, total: int, what: str) -> None:
            if bars.disable:
                lines(label or "working", done, total, what)
                return
            if what not in tasks:
                tasks[what] = bars.add_task(printable(f"{label} {what}".strip()), total=total)
            bars.update(bars.task_ids[tasks[what]], completed=done, total=total)

        yield progress


_TITLES = {
    "frames": "choosing frames",
    "poses": "finding poses",
    "reading": "reading photos",
    "cameras": "refining cameras",
    "kernels": "kernels",
    "depth": "depth maps",
    "fusion": "fusing",
    "mesh": "painting",
    "rendering": "rendering",
}


class _Rate(ProgressColumn):
    """Steps per second, or seconds per step where these are long."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each", style="dim")


class _Lines:
    """Progress where nobody watches: a line on stderr, not more often than every so many seconds."""

    def __init__(self, every: float) -> None:
        self.every, self.last = every, time.monotonic()

    def __call__(self, title: str, done: int, total: int, what: str) -> None:
        if time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            print(printable(f"{title}: {done} of {total}, {what}"), file=sys.stderr, flush=True)


class StepBars:
    """`with StepBars() as bars: work(progress=bars)`; on no terminal, a line every few seconds."""

    def __init__(self, every: float = 5.0) -> None:
        console = Console(stderr=True)
        self._lines = _Lines(every)
        self._bars = Progress(
            TextColumn("{task.description:14}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[what]}", style="dim", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StepBars:
        self._bars.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, step: str, done: int, total: int, what: str) -> None:
        if self._bars.disable:
            self._lines(_TITLES.get(step, step), done, total, what)
            return
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(_TITLES.get(step, step), total=total, what="")
        self._bars.update(self._tasks[step], completed=done, total=total, what=printable(what))
