"""Opening and reading files from elsewhere, without trusting them."""

from __future__ import annotations

import io
import json
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gbinet.errors import FormatError

# Held while NumPy reads the header of an array: it calls `ast.literal_eval`, which in Python 3.11 may fail
# while another thread calls it (SystemError: AST constructor recursion depth mismatch).
NPY_HEADER = threading.Lock()


def is_file(path: Path) -> bool:
    """Whether there is a regular file; names that no file can have are not an error."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def regular_size(path: Path) -> int:
    """Size in bytes of a regular file. Anything else is a FormatError: a pipe or a device may never end."""
    try:
        state = path.stat()
    except FileNotFoundError as error:
        raise FormatError(path, "there is no such file") from error
    except PermissionError as error:
        raise FormatError(path, "no permission to read this file") from error
    except OSError as error:
        raise FormatError(path, f"cannot be opened ({error.strerror})") from error
    except ValueError as error:  # a zero byte, or half of a surrogate pair
        raise FormatError(path, "no file can have this name") from error
    if stat.S_ISDIR(state.st_mode):
        raise FormatError(path, "this is a folder, a file was expected")
    if not stat.S_ISREG(state.st_mode):
        raise FormatError(path, "is not a regular file (a pipe, a socket or a device), so it is not opened")
    return state.st_size


class _Sized(io.BufferedReader):
    """A file whose `read` never allocates more than the bytes that are left, whatever count it is given."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(io.FileIO(path))
        self._size = size

    def read(self, count: int | None = -1) -> bytes:
        if count is None or count < 0:
            return super().read()
        return super().read(min(count, max(0, self._size - self.tell())))


@contextmanager
def open_sized(path: str | Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open for reading; yields the file and its size in bytes, against which headers are to be checked."""
    path = Path(path)
    size = regular_size(path)
    try:
        file = _Sized(path, size)
    except PermissionError as error:
        raise FormatError(path, "no permission to read this file") from error
    except OSError as error:
        raise FormatError(path, f"cannot be opened ({error.strerror})") from error
    with file:
        yield file, size


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """All bytes of a file that must not be larger than max_bytes; a missing file is a FormatError too."""
    with open_sized(path) as (file, size):
        if size > max_bytes:
            raise FormatError(path, f"has {size:,} bytes; a file of this kind has at most {max_bytes:,}")
        return file.read()


def read_json(path: Path, max_bytes: int = 1 << 24) -> Any:
    """What a JSON file holds; whatever is wrong with it is a FormatError."""
    return parse_json(path, read_bounded(path, max_bytes))


def read_record(path: Path) -> dict[str, Any]:
    """A JSON object that an earlier run wrote; empty if the file is missing or broken."""
    try:
        content = read_json(path)
    except (OSError, FormatError):
        return {}
    return content if isinstance(content, dict) else {}


def names_in(record: Mapping[str, object], key: str) -> list[str]:
    """Names below a folder that such a record lists. One that somebody changed must not lead out of it."""
    values = record.get(key)
    names = [v for v in values if isinstance(v, str)] if isinstance(values, list) else []
    return [name for name in names if _is_below(Path(name).parts) and "\0" not in name]


def _is_below(parts: tuple[str, ...]) -> bool:
    """Whether a path leads to something inside the folder, and not to the folder itself."""
    return bool(parts) and {"..", "/"}.isdisjoint(parts)


def parse_json(path: Path, text: str | bytes) -> Any:
    """Parse JSON from the file `path`; whatever is wrong with it is a FormatError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(path, f"is not valid JSON ({error.msg})", f"line {error.lineno}") from error
    except UnicodeDecodeError as error:
        raise FormatError(path, "is not valid JSON (not UTF-8)", f"byte {error.start}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply; or an integer of thousands of digits
        raise FormatError(path, f"is not valid JSON ({error})") from error


def read_exactly(path: Path, file: BinaryIO, count: int, what: str) -> bytes:
    """The next `count` bytes, or a FormatError that says where the file ends."""
    position = file.tell()
    data = file.read(count)
    if len(data) < count:
        raise FormatError(path, f"cut short in {what}", f"byte {position + len(data)}")
    return data
