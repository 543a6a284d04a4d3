"""Hashes of files. A file that did not change since the last run is not read again."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gbinet.errors import FormatError
from gbinet.formats.atomic import write_text
from gbinet.formats.reading import read_json

UNREADABLE = "unreadable"  # in place of the hash of a missing file, or one that is not a regular file

# A file that changes twice within one tick of the file system's clock looks the same afterwards. So a hash is
# stored only for files that were older than this when they were read. FAT has the coarsest clock: 2 s.
_TICK = 3 * 10**9  # ns
_Stamp = list[int]  # of a file: size, times of change, inode


class Fingerprints:
    """Hashes of the contents of files, stored in a JSON file between runs.

    A file is read again only if its stamp differs from the stored one. The stamp includes the time of the
    last change of the inode, which no program can set back.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._earlier = _read(store)  # path -> [stamp, hash], of earlier runs
        self._current: dict[str, list[Any]] = {}  # the same, of this run

    def of(self, path: Path) -> str:
        """The hash of a file's bytes."""
        key = os.path.abspath(path)  # noqa: PTH100  # resolve() would look at every folder on the way
        earlier = self._earlier.get(key)
        try:
            before = path.stat()
            if not stat.S_ISREG(before.st_mode):  # reading a pipe could block for ever
                return UNREADABLE
            if earlier is not None and earlier[0] == _stamp(before):
                self._current[key] = earlier
                return str(earlier[1])
            began = time.time_ns()
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, _hasher).hexdigest()
                after = os.fstat(file.fileno())
        except OSError:
            return UNREADABLE
        if _stamp(before) == _stamp(after) and max(after.st_mtime_ns, after.st_ctime_ns) < began - _TICK:
            self._current[key] = [_stamp(after), digest]
        return digest

    def of_all(self, paths: Iterable[Path]) -> dict[Path, str]:
        """The hashes of many files, read by several threads."""
        distinct = list(dict.fromkeys(paths))
        with ThreadPoolExecutor(4, "hash") as pool:
            return dict(zip(distinct, pool.map(self.of, distinct), strict=True))

    def save(self) -> None:
        """Store the hashes that were asked for in this run, and no others."""
        if self._current != self._earlier:
            write_text(self._store, json.dumps(self._current, indent=0, sort_keys=True) + "\n")
            self._earlier = dict(self._current)


def digest(path: Path) -> str:
    """The hash of one file's bytes, always read anew."""
    try:
        if not path.is_file():
            return UNREADABLE
        with path.open("rb") as file:
            return str(hashlib.file_digest(file, _hasher).hexdigest())
    except OSError:
        return UNREADABLE


def _hasher() -> Any:
    return hashlib.blake2b(digest_size=16)


def _stamp(state: os.stat_result) -> _Stamp:
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def _read(store: Path) -> dict[str, list[Any]]:
    """The stored hashes; none if the file is broken, since they can be computed again."""
    try:
        content = read_json(store, 1 << 28)
        return {str(k): [list(stamp), str(digest)] for k, (stamp, digest) in content.items()}
    except (OSError, FormatError, ValueError, TypeError, AttributeError):
        return {}
