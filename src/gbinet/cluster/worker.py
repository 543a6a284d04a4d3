"""What runs on the machines of a cluster: an actor that holds a job and does one item after the other."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from gbinet import __version__
from gbinet.errors import GBiNetError
from gbinet.scene import Scene


class RefusedError(GBiNetError):
    """A worker cannot read the files of a view; another machine may be able to."""

    def __init__(self, view: int, reason: str) -> None:
        super().__init__(reason)
        self.view = view


class ViewJob:
    """A job that reads views: does without those that no machine can read, and refuses items for others."""

    @cached_property
    def lost(self) -> dict[int, str]:
        """Views that no machine can read, with the reason."""
        return {}

    def refuse(self, view: int, problem: str) -> None:
        if view not in self.lost:
            raise RefusedError(view, problem)


@dataclass(frozen=True)
class Answer:
    """The answer of a worker for an item; large data is returned separately."""

    value: Any = None
    problem: str = ""  # why the worker could not do it
    unreadable: int | None = None  # the view whose files it could not read, if that is why
    messages: tuple[str, ...] = ()  # what was logged meanwhile


class Job(Protocol):
    """Work on items, with state that is kept from one to the next."""

    def begin(self, item: int, following: Sequence[int], lost: dict[int, str]) -> Callable[[], Any]:
        """Compute one item; always called in the same thread. `lost`: views whose files no machine can read.

        The function that it returns is called while the next item is computed, and returns a small value and
        a large one.
        """


@dataclass(frozen=True)
class JobMaker:
    """Makes a job on a worker's machine, from arguments that are sent there once."""

    kind: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self) -> Any:
        return self.kind(*self.arguments)


@dataclass
class _Messages(logging.Handler):
    """Collects logged warnings, which the driver logs again."""

    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.WARNING)

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def taken(self) -> tuple[str, ...]:
        texts, self.texts = self.texts, []
        return tuple(texts)


class Worker:
    """The actor. Two calls run at a time: one computes an item, the other writes or sends the one before."""

    def __init__(self, make: Callable[[], Job]) -> None:
        self._messages = _Messages()
        logging.getLogger("gbinet").addHandler(self._messages)
        self._computing = ThreadPoolExecutor(1, "compute")
        self._job = self._computing.submit(make).result()

    def ready(self) -> tuple[str, str]:
        """The machine that it runs on, and its version of the software."""
        import ray

        return ray.get_runtime_context().get_node_id(), __version__

    def do(self, item: int, following: Sequence[int], lost: dict[int, str]) -> tuple[Answer, Any]:
        """Do an item; errors become answers, because not every exception can be sent between processes."""
        try:
            finish = self._computing.submit(self._job.begin, item, following, lost).result()
            value, large = finish()
            return Answer(value, messages=self._messages.taken()), large
        except RefusedError as error:
            return Answer(problem=str(error), unreadable=error.view, messages=self._messages.taken()), None
        except GBiNetError as error:
            return Answer(problem=str(error), messages=self._messages.taken()), None
        except Exception:
            return Answer(problem=traceback.format_exc(), messages=self._messages.taken()), None


def with_absolute_paths(scene: Scene) -> Scene:
    """The scene with absolute paths: workers start in folders of their own."""

    def absolute(path: Path | None) -> Path | None:
        return None if path is None else path.absolute()

    views = tuple(
        replace(
            view,
            image_path=view.image_path.absolute(),
            mask_path=absolute(view.mask_path),
            depth_path=absolute(view.depth_path),
            original_path=absolute(view.original_path),
        )
        for view in scene.views
    )
    return replace(scene, root=scene.root.absolute(), views=views)
