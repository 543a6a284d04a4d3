"""Files appear whole or not at all, also when the power fails."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gbinet.errors import GBiNetError

_REASONS = {
    errno.EACCES: "no permission to write here; choose another folder",
    errno.EPERM: "no permission to write here; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "the disk is full; free some space and start again",
    errno.EDQUOT: "your disk quota is used up; free some space and start again",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EEXIST: "a part of this path is a file, not a folder",
    errno.EISDIR: "this is a folder; give the name of a file",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.ENOENT: "no folder can be made here; choose another place",  # e.g. in /proc
}
_FLUSH_BYTES = 64 << 20  # bytes to write between two flushes in the background
_TEMPORARY = re.compile(r"\.gbinet-tmp-[0-9a-f]{8}-.*", re.DOTALL)


def explain_write_error(path: Path, error: OSError) -> GBiNetError | None:
    """An error that says why `path` could not be written; None for causes without a better explanation."""
    reason = _REASONS.get(error.errno or 0)
    return GBiNetError(f"cannot write {path}: {reason}") if reason else None


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` (same suffix); rename it to `path` if the body succeeds.

    The body writes a file there, or makes a folder.
    Parent folders are created. If the body fails, nothing is left behind and an older file stays as it was.
    The bytes are on the disk before the name is: a power cut leaves the old file or the new one.
    """
    target = Path(path)
    temporary = target.parent / f".gbinet-tmp-{secrets.token_hex(4)}-{target.name[-80:]}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush(temporary)
        temporary.replace(target)
        _flush_folder(target.parent)
    except OSError as error:
        # Only failures of this very write: the body may also read other files, whose errors are not ours.
        named = error.filename2 or error.filename  # of a copy, the second is the one that is written
        ours = named is None or Path(named).parent in (target.parent, *target.parents)
        if error.errno == errno.ENOENT and target.parent.is_dir():
            ours = False  # the missing file is another one
        if ours and (explained := explain_write_error(target, error)) is not None:
            raise explained from error
        raise
    finally:
        with suppress(OSError):  # the folder itself may be out of reach; the first error says so
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """`atomic_path` for one file, open for writing bytes. An error on closing it (a full disk) counts too."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


class BackgroundFlush:
    """Flushes a large file to the disk while more is written, so that the flush at its end is short."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, "flush")
        self._flush: Future[None] | None = None  # the last one that was begun
        self._unflushed = 0  # bytes written since then

    def add_written(self, count: int) -> None:
        """Count bytes that were written; flush when they are many. Raises the error of an earlier flush."""
        self._unflushed += count
        if self._unflushed < _FLUSH_BYTES or not (self._flush is None or self._flush.done()):
            return
        if self._flush is not None:
            self._flush.result()
        self._unflushed, self._flush = 0, self._thread.submit(os.fsync, self._file.fileno())

    def close(self) -> None:
        """Wait for the last flush, before the file is closed; raises its error."""
        self._thread.shutdown()
        if self._flush is not None:
            self._flush.result()


def write_text(path: str | Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: str | Path, content: object) -> Path:
    """Write indented, strictly valid JSON of anything that `json_ready` takes."""
    return write_text(path, json.dumps(json_ready(content), indent=2, allow_nan=False) + "\n")


def json_ready(value: Any) -> Any:
    """Dataclasses, paths, arrays and NumPy numbers as values that JSON has; NaN and infinity become None."""
    if is_dataclass(value) and not isinstance(value, type):
        return json_ready(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return json_ready(value.tolist())
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def remove_temporary(*folders: Path) -> list[Path]:
    """Remove the files that killed processes left in these folders (not below them); returns their paths.

    Call this only while holding the folder's lock: see gbinet.formats.lock.
    """
    entries = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    leftovers = [path for path in entries if _TEMPORARY.fullmatch(path.name) and not path.is_dir()]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return leftovers


def _flush(path: Path) -> None:
    """Move the bytes of a file, or of all files in a folder, from the system's memory to the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            _flush(entry)
        return _flush_folder(path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush the names in a folder, where the system can (Windows and some network file systems cannot)."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
