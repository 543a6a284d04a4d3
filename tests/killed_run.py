"""Kill `gbinet` at a chosen moment: a script for tests, which imports everything once and forks.

    killed_run.py MOMENTS COUNT OUT -- VERB OPTIONS...

Runs the command into OUT/whole and notes every moment at which a file changes. Then, at COUNT of these
moments spread over the run, kills (SIGKILL) the same command into OUT/<number> and starts it again. MOMENTS,
a JSON file, tells which moments these were.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gbinet.cli.reconstruct
import gbinet.pipeline.reconstruct  # noqa: F401  # before the fork, so that it happens once
from gbinet.cli.main import main


class Watch:
    """Counts moments: around the naming and removing of a file, and when it is opened and still empty."""

    def __init__(self, out: Path, kill_at: int | None) -> None:
        self.out, self.kill_at = str(out), kill_at
        self.seen: list[str] = []

    def moment(self, what: str, path: object) -> None:
        if isinstance(path, int) or not os.fspath(path).startswith(self.out):  # type: ignore[call-overload]
            return
        if len(self.seen) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(f"{what} {Path(os.fspath(path)).name}")  # type: ignore[call-overload]

    def around(self, module: Any, name: str, place: int) -> None:
        """Two moments around a function of a module; the argument number `place` is a path."""
        real: Callable[..., Any] = getattr(module, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.moment(f"before {name}", arguments[place])
            result = real(*arguments, **options)
            self.moment(f"after {name}", arguments[place])
            return result

        setattr(module, name, wrapped)

    def writing(self, module: Any) -> None:
        """A moment when a file has been opened to write, and is still empty."""
        real: Callable[..., Any] = module.open

        def wrapped(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            opened = real(file, mode, *arguments, **options)
            if "w" in mode:
                self.moment("open", file)
            return opened

        module.open = wrapped

    def start(self) -> None:
        self.around(os, "replace", 1)
        self.around(os, "unlink", 0)
        self.writing(io)
        self.writing(builtins)


def run(arguments: list[str], out: Path, kill_at: int | None, moments: Path | None = None) -> int:
    """The command in a child; its status as os.wait gives it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    watch = Watch(out, kill_at)
    if kill_at is not None or moments is not None:
        watch.start()
    code = main([*arguments, "-o", str(out)])
    if moments is not None:
        moments.write_text(json.dumps(watch.seen))
    os._exit(code)


def spread(seen: list[str], count: int) -> list[int]:
    """Moments over the whole run, among them one for every name of a file that is not one of many."""
    names = [what.rpartition("-")[2] if ".gbinet-tmp-" in what else what.rpartition(" ")[2] for what in seen]
    special = [
        names.index(name) for name in dict.fromkeys(names) if name.endswith((".json", ".html", ".ply"))
    ]
    even = [round(i * (len(seen) - 1) / max(1, count - 1)) for i in range(count)]
    return sorted(list(dict.fromkeys([*special, *even]))[:count])


if __name__ == "__main__":
    store, number, folder = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    command = sys.argv[sys.argv.index("--") + 1 :]
    assert run(command, folder / "whole", None, store) == 0, "the command fails"
    seen_moments = json.loads(store.read_text())
    killed = {}
    for at in spread(seen_moments, number):
        status = run(command, folder / str(at), at)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (
            f"{seen_moments[at]}: {status}"
        )
        assert run(command, folder / str(at), None) == 0, f"killed {seen_moments[at]}, it does not continue"
        killed[at] = seen_moments[at]
    store.write_text(json.dumps(killed))
