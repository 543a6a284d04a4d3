"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
}


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` (same suffix); rename it to `path` if the body succeeds.

    Parent folders are created. If the body fails, nothing is left behind and an older file stays as it was.
    """
    target = Path(path)
    temporary = target.parent / f".tmp-{secrets.token_hex(4)}-{target.name[-80:]}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        # Only failures of this very write: the body may also read other files, whose errors are not ours.
        ours = error.filename is None or Path(error.filename).parent in (target.parent, *target.parents)
        if error.errno in _REASONS and ours:
            raise GBiNetError(f"cannot write {target}: {_REASONS[error.errno]}") from error
        raise
    finally:
        with suppress(OSError):  # the folder itself may be out of reach; then the first error matters
            temporary.unlink(missing_ok=True)
