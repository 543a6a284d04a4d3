"""A substitute for torch in a process that only compiles kernels.

Files of kernels import torch for the functions that launch them, and nothing is launched there. Importing
torch takes one to two seconds, which all compilation would wait for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def stand_in_for_torch() -> None:
    """From now on, importing torch and anything in it gives placeholders."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _PlaceholderType(type):
    """A class whose every attribute is `_Placeholder`."""

    def __getattr__(cls, name: str) -> Any:
        return _no_attribute(name)


class _Placeholder(metaclass=_PlaceholderType):
    """A placeholder that works as a base class, decorator, type or value at the top of a file."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if args else self

    def __getattr__(self, name: str) -> Any:
        return _no_attribute(name)

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


def _no_attribute(name: str) -> Any:
    if name.startswith("__"):  # Python looks these up to learn what an object can do
        raise AttributeError(name)
    return _Placeholder


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _no_attribute(name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = fullname.partition(".")[0] == "torch"
        return ModuleSpec(fullname, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...
