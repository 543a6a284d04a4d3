"""Which bytes a file holds, as a short hash. Files that did not change are not read again."""

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

UNREADABLE = "unreadable"  # stands for the hash of what is not there, or is not a regular file

# A file that changes twice within one tick of the file system's clock looks the same afterwards. So a hash is
# remembered only for files that were older than this when they were read. FAT has the coarsest clock: 2 s.
_TICK = 3 * 10**9  # ns
_Stamp = list[int]


class Fingerprints:
    """Hashes of files, remembered in a JSON file between runs.

    Size, times and inode say whether a file must be read again; the time of the last change of the inode is
    among them, which no program can set back. The content alone decides what the hash is.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._stored = _read(store)  # path -> [stamp, hash]
        self._known: dict[str, list[Any]] = {}  # those of this run

    def of(self, path: Path) -> str:
        """The hash of a file's bytes."""
        key = os.path.abspath(path)  # noqa: PTH100  # resolve() would look at every folder on the way
        known = self._stored.get(key)
        try:
            state = path.stat()
            if not stat.S_ISREG(state.st_mode):  # a pipe would keep us waiting for ever
                return UNREADABLE
            if known is not None and known[0] == _stamp(state):
                self._known[key] = known
                return str(known[1])
            began = time.time_ns()
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, _hasher).hexdigest()
                after = os.fstat(file.fileno())
        except OSError:
            return UNREADABLE
        if _stamp(state) == _stamp(after) and max(after.st_mtime_ns, after.st_ctime_ns) < began - _TICK:
            self._known[key] = [_stamp(after), digest]
        return digest

    def of_all(self, paths: Iterable[Path]) -> dict[Path, str]:
        """The same for many files at once."""
        wanted = list(dict.fromkeys(paths))
        with ThreadPoolExecutor(4, "hash") as pool:
            return dict(zip(wanted, pool.map(self.of, wanted), strict=True))

    def save(self) -> None:
        """Remember the files of this run, and forget all others."""
        if self._known != self._stored:
            write_text(self._store, json.dumps(self._known, indent=0, sort_keys=True) + "\n")
            self._stored = dict(self._known)


def _hasher() -> Any:
    return hashlib.blake2b(digest_size=16)


def _stamp(state: os.stat_result) -> _Stamp:
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def _read(store: Path) -> dict[str, list[Any]]:
    """What is remembered; whatever does not look like it is forgotten, which costs a second look only."""
    try:
        content = read_json(store, 1 << 28)
        return {str(k): [list(stamp), str(digest)] for k, (stamp, digest) in content.items()}
    except (OSError, FormatError, ValueError, TypeError, AttributeError):
        return {}
