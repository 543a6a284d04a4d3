"""Reading small text files of numbers without trusting them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError
from gbinet.formats.reading import read_bounded


@dataclass(frozen=True)
class Line:
    """A line with its number, which errors name."""

    path: Path
    number: int  # from 1
    text: str

    def error(self, problem: str) -> FormatError:
        return FormatError(self.path, problem, f"line {self.number}")

    def floats(self, count: int | None = None, *, finite: bool = True) -> NDArray[np.float64]:
        """The numbers of this line; exactly `count` of them if given."""
        words = self.text.split()
        if count is not None and len(words) != count:
            raise self.error(f"expected {count} numbers, found {len(words)}: {self.text[:60]!r}")
        try:
            values = np.array(words, dtype=np.float64)
        except ValueError as error:
            raise self.error(f"is not a row of numbers: {self.text[:60]!r}") from error
        if finite and not np.isfinite(values).all():
            raise self.error(f"has a value that is not finite: {self.text[:60]!r}")
        return values

    def integer(self, low: int, high: int) -> int:
        try:
            value = int(self.text)
        except ValueError as error:
            raise self.error(f"expected a whole number, found {self.text[:60]!r}") from error
        if not low <= value <= high:
            raise self.error(f"{value} lies outside [{low}, {high}]")
        return value


def lines_of(path: Path, max_bytes: int) -> list[Line]:
    """The lines of a text file that are not blank."""
    return list(_lines(path, read_bounded(path, max_bytes)))


def _lines(path: Path, data: bytes) -> Iterator[Line]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, "is not a text file", f"byte {error.start}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped:
            yield Line(path, number, stripped)
