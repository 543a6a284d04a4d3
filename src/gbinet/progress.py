"""Callbacks by which long work reports how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]  # done, total, what
StepProgress = Callable[[str, int, int, str], None]  # step of a run, done, total, what
