"""A progress bar for the callbacks of the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str = "") -> Iterator[Callable[[int, int, str], None]]:
    """Yields `progress(done, total, what)`; each `what` has a bar of its own, gone when the block ends."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    console = Console(stderr=True)
    # Into a file or a pipe rich would print an empty line and nothing else.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}

        def progress(done: int, total: int, what: str) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(f"{label} {what}".strip(), total=total)
            bars.update(bars.task_ids[tasks[what]], completed=done, total=total)

        yield progress
