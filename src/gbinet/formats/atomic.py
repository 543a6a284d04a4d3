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
_FLUSHED = 64 << 20  # bytes that are worth a flush
_TEMPORARY = re.compile(r"\.gbinet-tmp-[0-9a-f]{8}-.*", re.DOTALL)


def write_error(path: Path, error: OSError) -> GBiNetError | None:
    """What a user should read when `path` could not be written; None if there is nothing better to say."""
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
        named = error.filename2 or error.filename  # of a copy, the second is what is written
        ours = named is None or Path(named).parent in (target.parent, *target.parents)
        ours &= error.errno != errno.ENOENT or not target.parent.is_dir()  # else, something else is not there
        if ours and (said := write_error(target, error)) is not None:
            raise said from error
        raise
    finally:
        with suppress(OSError):  # the folder itself may be out of reach; then the first error matters
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """The same for one file, opened for bytes. A disk that is full only when it is closed counts too."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file


class EarlyFlush:
    """Bytes go to the disk while more are written: at its end, a large file waits for few of them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, "flush")
        self._flushing: Future[None] | None = None
        self._written = 0  # bytes since

    def wrote(self, count: int) -> None:
        """So many bytes more are in the file. Raises what went wrong with earlier ones."""
        self._written += count
        if self._written < _FLUSHED or not (self._flushing is None or self._flushing.done()):
            return
        if self._flushing is not None:
            self._flushing.result()
        self._written, self._flushing = 0, self._thread.submit(os.fsync, self._file.fileno())

    def close(self) -> None:
        """Before the file is closed."""
        self._thread.shutdown()
        if self._flushing is not None:
            self._flushing.result()


def write_text(path: str | Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: str | Path, content: object) -> Path:
    """For people too: indented. Valid JSON always: see `plain`."""
    return write_text(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Dataclasses, paths, arrays and numbers of numpy -> what JSON knows; NaN and infinity become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def remove_temporary(*folders: Path) -> list[Path]:
    """Remove what `atomic_path` left behind in these very folders when its process was killed.

    Call this only while holding the folder's lock: see gbinet.formats.lock.
    """
    found = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    left = [path for path in found if _TEMPORARY.fullmatch(path.name) and not path.is_dir()]
    for path in left:
        path.unlink(missing_ok=True)
    return left


def _flush(path: Path) -> None:
    """Bytes that the system still holds in memory go to the disk; of a folder, those of all its files."""
    if path.is_dir():
        for entry in path.iterdir():
            _flush(entry)
        return _flush_folder(path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """The same for the names in a folder, where the system can do it (Windows and some networks cannot)."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
