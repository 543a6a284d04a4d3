"""Names of files: as they are shown, and as they are given to the files that we write.

A file system holds names that no terminal, page or text file should be handed as they are: bytes that are not
UTF-8 (Python carries them as surrogates), line ends, escape sequences.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

# A name of a file has at most 255 bytes, and what we write adds to the view's: `-0123456789abcdef-depth.npz`,
# `.jpg.geometric.bin`.
MAX_BYTES = 200


def shown(text: object) -> str:
    r"""For people: `\xNN` for bytes that are not UTF-8 and control characters, `\uNNNN` for the others."""
    plain = str(text)
    return plain if plain.isprintable() else "".join(map(_shown, plain))


def _shown(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # how Python carries a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def file_stem(text: str) -> str:
    """A name that a file of ours can have, before its suffix: printable, no separators, MAX_BYTES at most.

    What cannot stay is written as in web addresses (`%0A`); a long name ends in a hash of the whole.
    """
    safe = "".join(c if c.isprintable() and c not in "/\\" else _percent(c) for c in text)
    encoded = safe.encode()
    if safe in ("", ".", ".."):
        return "".join(map(_percent, safe)) or "_"
    if len(encoded) <= MAX_BYTES:
        return safe
    ending = f"-{hashlib.sha256(_bytes(text)).hexdigest()[:8]}"
    return encoded[: MAX_BYTES - len(ending)].decode(errors="ignore") + ending


def distinct_stems(names: Iterable[str]) -> list[str]:
    """`file_stem` of each, with a number behind those that would be the same."""
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
