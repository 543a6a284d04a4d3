"""Matlab's .mat files (version 5, 6, 7), read: arrays of numbers only.

Parsed by hand rather than by scipy, whose parser can be made to end the whole process by a broken file of 600
bytes. scipy is the independent witness in the tests.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError
from gbinet.formats.limits import check_unpacked
from gbinet.formats.reading import open_sized

_HEADER = 128  # bytes
_MATRIX, _COMPRESSED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_HEAD = 1024  # bytes of a compressed variable that surely hold its name
_MAX_AXES = 32
_COMPLEX = 0x0800


class _BrokenError(Exception):
    """Says what is wrong with some bytes; becomes a FormatError where the file is known."""


@dataclass(frozen=True)
class _MatElement:
    """A data element of the file."""

    code: int  # its type
    data: memoryview
    end: int  # where the next one begins


@dataclass(frozen=True)
class _Variable:
    """A variable of the file; the body of a compressed one is unpacked only as far as its name."""

    position: int
    body: memoryview
    packed: memoryview | None = None  # of a compressed one: all of it
    size: int = 0  # bytes of the whole body, where it is compressed


def read_mat(path: str | Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Those of the named variables that the file holds as arrays of real numbers."""
    path = Path(path)
    with open_sized(path) as (file, _):
        data = memoryview(file.read())
    order = _byte_order(path, bytes(data[:_HEADER]))
    arrays: dict[str, NDArray[Any]] = {}
    position = _HEADER
    try:
        for variable in _variables(data, order):
            position = variable.position
            _, _, name_element = _parts(variable.body, order, 3)
            name = bytes(name_element.data).decode("latin-1")
            if name in names:
                arrays[name] = _array(_unpacked(path, variable, name), order, name)
    except (_BrokenError, struct.error, zlib.error, ValueError) as error:
        raise FormatError(path, f"is not a readable Matlab file: {error}", f"byte {position}") from error
    return arrays


def _byte_order(path: Path, header: bytes) -> str:
    if header.startswith(b"\x89HDF") or header.startswith(b"MATLAB 7.3"):
        raise FormatError(path, "is a Matlab 7.3 (HDF5) file; save it with `save -v7` to read it", "byte 0")
    order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
    if order is None:
        raise FormatError(path, "is not a Matlab file of version 5 to 7", "byte 126")
    return order


def _variables(data: memoryview, order: str) -> Iterator[_Variable]:
    at = _HEADER
    while at + 8 <= len(data):
        element = _element(data, at, order)
        if element.code == _COMPRESSED:
            head = zlib.decompressobj().decompress(bytes(element.data), _HEAD)
            code, size = struct.unpack(f"{order}II", head[:8])
            if code == _MATRIX:
                yield _Variable(at, memoryview(head)[8:], element.data, size)
        elif element.code == _MATRIX:
            yield _Variable(at, element.data)
        at = element.end


def _unpacked(path: Path, variable: _Variable, name: str) -> memoryview:
    """The whole body of a variable."""
    if variable.packed is None:
        return variable.body
    check_unpacked(path, variable.size, f"'{name}'")
    whole = zlib.decompressobj().decompress(bytes(variable.packed), variable.size + 8)
    if len(whole) < variable.size + 8:
        raise _BrokenError(f"'{name}' is cut short")
    return memoryview(whole)[8:]


def _element(data: memoryview, at: int, order: str) -> _MatElement:
    code, size = struct.unpack_from(f"{order}II", data, at)
    if code >> 16:  # a short element: size and type in the first four bytes, then up to four bytes of data
        size, code, start = code >> 16, code & 0xFFFF, at + 4
        end = at + 8
        if size > 4:
            raise _BrokenError(f"a short element of {size} bytes")
    else:
        start = at + 8
        end = start + size + (0 if code == _COMPRESSED else -size % 8)
    if start + size > len(data):
        raise _BrokenError(f"cut short: an element of {size} bytes, {len(data) - start} are left")
    return _MatElement(code, data[start : start + size], end)


def _parts(body: memoryview, order: str, count: int) -> list[_MatElement]:
    """The first `count` elements inside a variable, which are flags, shape, name, numbers."""
    parts: list[_MatElement] = []
    at = 0
    for _ in range(count):
        parts.append(_element(body, at, order))
        at = parts[-1].end
    return parts


def _array(body: memoryview, order: str, name: str) -> NDArray[Any]:
    flags, dimensions, _, numbers = _parts(body, order, 4)
    (flag,) = struct.unpack_from(f"{order}I", flags.data)
    dtype, stored_type = _CLASSES.get(flag & 0xFF), _TYPES.get(numbers.code)
    if dtype is None or stored_type is None or flag & _COMPLEX:
        raise _BrokenError(f"'{name}' is not an array of real numbers")
    shape = np.frombuffer(dimensions.data, f"{order}i4").tolist()
    if not 2 <= len(shape) <= _MAX_AXES or min(shape) < 0:
        raise _BrokenError(f"an array of size {shape[:_MAX_AXES]}")
    values = np.frombuffer(numbers.data, f"{order}{stored_type}")
    count = 1
    for length in shape:
        count *= length
    if count != len(values):
        raise _BrokenError(f"an array of size {shape} with {len(values)} numbers")
    # Matlab stores small whole numbers in fewer bytes than their class has.
    return values.reshape(shape, order="F").astype(dtype)
