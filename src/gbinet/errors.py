"""Errors that a user can act on: each message names the file or value, what is wrong, and what to do."""

from __future__ import annotations

import math
from pathlib import Path

from gbinet.names import printable


class GBiNetError(Exception):
    """Base of every error that gbinet raises on purpose. The command line prints it as one plain sentence.

    Messages name the file or value, what is wrong and what to do. Names from files and folders are escaped.

    Example:
        >>> import gbinet
        >>> try:
        ...     gbinet.load_scene("no-such-folder")
        ... except gbinet.GBiNetError as error:
        ...     print(error)
        no-such-folder: there is no such folder
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class FormatError(GBiNetError):
    """A file is broken or not what it claims to be.

    Attributes:
        path: The file.
        problem: What is wrong with it.
        position: Where in the file, e.g. "line 7" or "byte 132"; empty if unknown.
    """

    def __init__(self, path: Path | str, problem: str, position: str = "") -> None:
        self.path = Path(path)
        self.problem = problem
        self.position = position  # e.g. "line 7" or "byte 132"
        super().__init__(f"{path}{f', {position}' if position else ''}: {problem}")

    def __reduce__(self) -> tuple[type[FormatError], tuple[Path, str, str]]:
        return type(self), (self.path, self.problem, self.position)  # pickle would call it with the message


class SceneError(GBiNetError):
    """A folder is not a scene that we can read, or the scene lacks something that is needed."""


class InputError(GBiNetError):
    """A value handed to a function is impossible (shape, range, NaN)."""


class WeightsError(GBiNetError):
    """A weights file does not fit the network."""


def flag(field: str) -> str:
    """The command-line flag of a configuration field: `min_views` -> `--min-views`."""
    return f"--{field.replace('_', '-')}"


def no_folder(path: Path, of: str = "") -> str:
    """Message for a path that should be a folder; `of`: words to put behind "folder"."""
    return (
        f"{path}: is a file, not a folder{of}" if path.is_file() else f"{path}: there is no such folder{of}"
    )


def check_finite(what: str, *values: float) -> None:
    """Raise an InputError that names `what` if a value is NaN or infinite."""
    if not all(math.isfinite(value) for value in values):
        expected = "a finite number" if len(values) == 1 else "finite numbers"
        raise InputError(f"{what} must be {expected}, got {_listed(values)}")


def check_positive(what: str, *values: float) -> None:
    """Raise an InputError that names `what` unless there is a value and all are finite and above 0."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise InputError(f"{what} must be positive and finite, got {_listed(values) or 'none'}")


def check_not_negative(what: str, *values: float) -> None:
    """Raise an InputError that names `what` unless all values are 0 or above."""
    if not all(value >= 0 for value in values):
        raise InputError(f"{what} must not be negative, got {_listed(values)}")


def check_share(what: str, value: float) -> float:
    """Return the value; raise an InputError that names `what` unless it lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise InputError(f"{what} must lie in 0..1, got {value}")
    return value


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)
