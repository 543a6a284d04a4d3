"""One writer per folder: a lock file that names its holder, and that is released when its process ends.

The operating system holds the lock (flock), so that nothing is left to clean up when a process is killed, and
Linux passes it on to NFS servers. Where there is no flock (Windows, some network file systems), the process
that the file names is looked up instead: on this machine by number and start time; one on another machine
counts as alive until somebody deletes the file.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gbinet.errors import GBiNetError
from gbinet.formats.atomic import explain_write_error
from gbinet.formats.reading import read_record

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = ".gbinet.lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_PAUSE = 0.1  # seconds between two tries
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@contextmanager
def locked(folder: Path, while_waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of `folder` inside this block, or raise a GBiNetError that names who holds it.

    With `while_waiting`, wait for the lock instead; it is called between two tries, and may raise.

    The folder is created; one that was not there before and is still empty at the end is removed again.
    """
    path, created = folder / FILE, list[Path]()
    try:
        created += [p for p in (folder, *folder.parents) if not p.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = _acquire(path, while_waiting)
    except OSError as error:
        _remove_empty(created)
        raise explain_write_error(folder, error) or error from error
    try:
        yield
    finally:
        # Remove the name first, then release the lock: whoever waits sees that its file has no name any more,
        # and starts afresh. An empty file names no holder, where open files cannot be removed (Windows).
        with suppress(OSError):
            os.ftruncate(handle, 0)
            path.unlink()
        os.close(handle)
        _remove_empty(created)


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # not empty, or not there
        for folder in folders:
            folder.rmdir()


def _acquire(path: Path, while_waiting: Callable[[], None] | None) -> int:
    """An open, locked file that bears the name `path`."""
    while True:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise GBiNetError(f"{path}: is a link, a folder or a pipe, not the lock of a run; move it away")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        ours = False
        try:
            ours = _lock(path, handle, may_wait=while_waiting is not None) and _has_name(handle, path)
            if ours:
                _write_holder(handle)
                return handle
        except BaseException:
            if ours:  # a full disk, for one
                path.unlink()
            os.close(handle)
            raise
        os.close(handle)  # the last holder has removed it in the meantime, or still holds it
        if while_waiting is not None:
            while_waiting()
            time.sleep(_PAUSE)


def _lock(path: Path, handle: int, may_wait: bool) -> bool:
    """Try to lock; whether it worked. Unless `may_wait`, raise an error that names the holder if not."""
    holder = read_record(path)
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                if may_wait and error.errno in _HELD:
                    return False
                raise _in_use(path, holder) from error
    if holder and _alive(holder):
        if may_wait:
            return False
        raise _in_use(path, holder)
    return True


def _has_name(handle: int, path: Path) -> bool:
    """Whether the open file is the one that lies at `path`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _in_use(path: Path, holder: dict[str, Any]) -> GBiNetError:
    who = "another process"
    if holder:
        who = f"process {holder.get('process')} on {holder.get('machine')} (since {holder.get('since')})"
    advice = "wait until it has ended, or choose another output folder"
    if fcntl is None or (holder and holder.get("machine") != socket.gethostname()):
        advice += f"; if it is long gone, delete {path}"
    return GBiNetError(f"{path.parent}: {who} is writing here; {advice}")


# ---- the holder --------------------------------------------------------------------------------------------


def _write_holder(handle: int) -> None:
    holder = {
        "process": os.getpid(),
        "machine": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "process_started": _process_started(os.getpid()),
        "command": " ".join(sys.argv),
    }
    os.ftruncate(handle, 0)
    os.write(handle, (json.dumps(holder, indent=2) + "\n").encode())


def _alive(holder: dict[str, Any]) -> bool:
    """Whether the process that wrote this may still run."""
    if holder.get("machine") != socket.gethostname() or not Path("/proc/self/stat").exists():
        return True  # there is no way to tell
    started = _process_started(holder.get("process"))
    return started is not None and started == holder.get("process_started")


def _process_started(number: object) -> str | None:
    """When a process of this machine began, in clock ticks since boot; None if there is no such process."""
    try:
        after_name = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2]
        return after_name.split()[19]  # field 22
    except (OSError, IndexError):
        return None
