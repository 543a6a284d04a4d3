"""File names: made safe to display, and to use for the files that we write.

A file system allows names that must not reach a terminal, page or text file unchanged: bytes that are not
UTF-8 (Python represents them as surrogates), line ends, escape sequences.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

# A file name has at most 255 bytes, and the files of a view add to its name: `-0123456789abcdef-depth.npz`,
# `.jpg.geometric.bin`.
MAX_BYTES = 200


def printable(text: object) -> str:
    r"""Text with control characters and bytes that are not UTF-8 escaped, as `\xNN` or `\uNNNN`."""
    plain = str(text)
    return plain if plain.isprintable() else "".join(map(_escaped, plain))


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # how Python represents a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def file_stem(text: str) -> str:
    """A file name without suffix, made from any text: printable, no separators, at most MAX_BYTES.

    Other characters are percent-encoded as in URLs (`%0A`), and spaces at its beginning, which a line of a
    text file would lose; a long name is cut and ends in a hash.
    """
    rest = text.lstrip(" ")
    spaces = _percent(" ") * (len(text) - len(rest))
    safe = spaces + "".join(c if c.isprintable() and c not in "/\\" else _percent(c) for c in rest)
    encoded = safe.encode()
    if safe in ("", ".", ".."):
        return "".join(map(_percent, safe)) or "_"
    if len(encoded) <= MAX_BYTES:
        return safe
    ending = f"-{hashlib.sha256(_bytes(text)).hexdigest()[:8]}"
    return encoded[: MAX_BYTES - len(ending)].decode(errors="ignore") + ending


def distinct_stems(names: Iterable[str]) -> list[str]:
    """`file_stem` of each name; one that would repeat an earlier one gets a number at its end."""
    result: list[str] = []
    taken: set[str] = set()
    for name in names:
        stem = free = file_stem(name)
        number = 1
        while free in taken:
            number += 1
            free = f"{stem}_{number}"
        taken.add(free)
        result.append(free)
    return result


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in _bytes(character))


def _bytes(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can hold it, a file system cannot
        return text.encode("utf-8", "surrogatepass")
