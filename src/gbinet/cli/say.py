"""Printing: for people, lines with names as they are shown; for programs (--json), one object on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from gbinet.names import printable

_for_programs = False  # stdout belongs to one JSON object; all else goes to stderr


def speak_to_programs(on: bool) -> None:
    """Whether --json was given; set once, before a verb runs."""
    global _for_programs
    _for_programs = on


def for_programs() -> bool:
    return _for_programs


def say(text: object) -> None:
    print(printable(text), file=sys.stderr if _for_programs else sys.stdout, flush=True)


def say_lines(text: str) -> None:
    """A text of ours of several lines, such as a table."""
    for line in text.splitlines():
        say(line)


def say_notes(texts: Iterable[str]) -> None:
    for text in texts:
        say(f"note: {text}")


def tell(content: object) -> None:
    """The object for programs, if one asked for it: valid JSON, as `write_json` writes it."""
    if _for_programs:
        from gbinet.formats.atomic import json_ready

        print(json.dumps(json_ready(content), indent=2, allow_nan=False), flush=True)
