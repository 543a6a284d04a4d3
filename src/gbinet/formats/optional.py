"""Optional libraries: imported where they are used; an error says which extra installs a missing one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
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
