"""Opening a file that somebody else wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gbinet.errors import FormatError


@contextmanager
def open_sized(path: str | Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open for reading; yields the file and its size in bytes, against which headers are to be checked."""
    path = Path(path)
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise FormatError(path, "there is no such file") from error
    except IsADirectoryError as error:
        raise FormatError(path, "this is a folder, a file was expected") from error
    except PermissionError as error:
        raise FormatError(path, "no permission to read this file") from error
    with file:
        yield file, path.stat().st_size


def read_exactly(path: Path, file: BinaryIO, count: int, what: str) -> bytes:
    """The next `count` bytes, or a FormatError that says where the file ends."""
    position = file.tell()
    data = file.read(count)
    if len(data) < count:
        raise FormatError(path, f"cut short in {what}", f"byte {position + len(data)}")
    return data
