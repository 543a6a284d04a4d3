"""Printing: one line, with names as they are shown."""

from __future__ import annotations

from collections.abc import Iterable

from gbinet.names import shown


def say(text: object) -> None:
    print(shown(text), flush=True)


def say_notes(texts: Iterable[str]) -> None:
    for text in texts:
        say(f"note: {text}")
