"""Optional libraries: imported where they are used; an error says which extra installs a missing one."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gbinet.errors import GBiNetError


def optional(module: str, purpose: str, extra: str) -> Any:
    """Import a module; raise a GBiNetError that says what needs it and how to install it if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        if importlib.util.find_spec(name) is not None and sys.modules.get(name, error) is not None:
            raise GBiNetError(
                f"{purpose} needs {name}, which is installed but does not load: {error}"
            ) from error
        raise GBiNetError(f"{purpose} needs {name}: pip install 'gbinet[{extra}]'") from error


def installed(*modules: str) -> bool:
    """Whether all of them can be imported."""
    try:
        return all(importlib.import_module(module) for module in modules)
    except ImportError:
        return False


def load_pycolmap() -> Any:
    """pycolmap. On SIGTERM, its log library would end the process with a stack trace and tidy nothing up."""
    with own_sigterm():
        import pycolmap
    return pycolmap


@contextmanager
def own_sigterm() -> Iterator[None]:
    """SIGTERM does afterwards what it did before, whatever handler a library puts there inside the block."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Only the main thread can set a handler; None is one that Python did not set.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
