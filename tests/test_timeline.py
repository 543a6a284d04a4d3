"""The timeline of a benchmark wraps functions by name, and passes over what is not there."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

import pytest


def test_every_part_of_the_timeline_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    parts = importlib.import_module("_timeline").RECONSTRUCT
    for function in (name for names in parts.values() for name in names):
        module, _, path = function.partition(":")
        if not module.startswith("triton"):  # of which there are versions, or none
            functools.reduce(getattr, path.split("."), importlib.import_module(module))
