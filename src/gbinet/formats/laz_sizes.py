"""Sizes that a LAZ file states, against what it holds: its decoder reserves whatever they say, or aborts."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from gbinet.errors import FormatError

# Numbers of the kinds of data in a point -> parts of a chunk that are compressed by themselves.
_LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}
_BYTES = 14  # one more kind: each of its bytes is a part
_LAYERED = 3  # how the chunks of point formats from 6 up are compressed


def check_chunk_count(path: Path, file: BinaryIO, size: int, start: int, point_size: int) -> None:
    """A chunk begins with a whole point, so that a file has no room for more. `start`: of the points."""
    table = _number(file, start, "<q")
    if table == -1:  # stated at the end, by programs that could not go back
        table = _number(file, size - 8, "<q")
    count = None if table is None or table < 0 else _number(file, table + 4, "<I")
    if count is None or count * max(1, point_size) > size:
        raise FormatError(path, "has no table of its chunks that fits its size", f"byte {start}")
    file.seek(0)


def check_chunks(path: Path, lazrs: Any, about: bytes, start: int, size: int) -> None:
    """What each chunk says about its parts. `about`: the record that describes the compression."""
    if struct.unpack_from("<H", about)[0] != _LAYERED:
        return
    items = [
        struct.unpack_from("<HH", about, 34 + 6 * k) for k in range(struct.unpack_from("<H", about, 32)[0])
    ]
    layers = sum(width if kind == _BYTES else _LAYERS.get(kind, 0) for kind, width in items)
    head = sum(width for _, width in items) + 4  # the first point, and how many there are
    with path.open("rb") as file:
        file.seek(start)
        chunks = lazrs.read_chunk_table(file, lazrs.LazVlr(about))
        at = start + 8
        for _, length in chunks:
            file.seek(at)
            stated = file.read(head + 4 * layers)[head:]
            parts = sum(struct.unpack(f"<{len(stated) // 4}I", stated[: len(stated) // 4 * 4]))
            if head + 4 * layers + parts > length or at + length > size:
                raise FormatError(path, f"a chunk of {length} bytes states more than it holds", f"byte {at}")
            at += length


def _number(file: BinaryIO, at: int, kind: str) -> int | None:
    file.seek(max(0, at))
    found = file.read(struct.calcsize(kind))
    return int(struct.unpack(kind, found)[0]) if len(found) == struct.calcsize(kind) else None
