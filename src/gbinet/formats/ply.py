"""PLY point clouds: a writer that streams (a billion points need no memory) and a reader for anybody's files.

Written by hand rather than through plyfile: neither side may hold more than it needs, a header that lies must
not make us allocate, and fusion and evaluation run on machines that have only torch and numpy. plyfile is the
independent witness in the tests.
"""

from __future__ import annotations

import itertools
import mmap
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import BackgroundFlush, atomic_file
from gbinet.formats.reading import open_sized
from gbinet.pointcloud import PointCloud

Array = np.ndarray[Any, Any]

# ---- writing ----------------------------------------------------------------------------------------------

# Field of PointCloud -> its PLY properties. Order is the order in the file.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "xyz": ("x", "y", "z"),
    "normals": ("nx", "ny", "nz"),
    "rgb": ("red", "green", "blue"),
    "confidence": ("confidence",),
    "num_views": ("num_views",),
}
_PLY_NAME = {"f4": "float", "f8": "double", "u1": "uchar"}
_CHUNK = 1 << 18  # points turned into bytes at a time
_COUNT_DIGITS = 19  # room for any 64-bit count


def write_ply(path: str | Path, cloud: PointCloud) -> Path:
    """Write the cloud as binary little-endian PLY; float64 positions stay float64."""
    with PlyWriter(path) as writer:
        writer.append(cloud)
    return Path(path)


class PlyWriter:
    """Writes a PLY piece by piece: `with PlyWriter(path) as writer: writer.append(cloud)`.

    The first cloud decides the columns; later ones must have them too. The file appears when the block ends
    without an error.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.count = 0  # points written so far
        self._types: dict[str, str] | None = None  # field of PointCloud -> numpy type, once known
        self._opened = atomic_file(self.path)

    def __enter__(self) -> PlyWriter:
        self._file: BinaryIO = self._opened.__enter__()
        self._flush = BackgroundFlush(self._file)
        return self

    def append(self, cloud: PointCloud) -> None:
        if self._types is None:
            self._types = _column_types(cloud)
            layout = [(name, f"<{self._types[field]}") for field in self._types for name in _COLUMNS[field]]
            self._buffer = np.empty(_CHUNK, layout)
            self._file.write(_header(self._types, 0))
        missing = [field for field in self._types if getattr(cloud, field) is None]
        if missing:
            raise InputError(f"{self.path}: earlier points have {', '.join(missing)}, this cloud does not")
        for start in range(0, len(cloud), _CHUNK):
            rows = _fill(self._buffer, cloud[start : start + _CHUNK], self._types)
            self._file.write(rows.data)
            self._flush.add_written(rows.nbytes)
            self.count += len(rows)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._flush.close()
            if error is None:
                self._file.seek(0)
                self._file.write(_header(self._types or {"xyz": "f4"}, self.count))
        except OSError as flush_error:  # e.g. the disk is full when buffers are flushed
            self._opened.__exit__(type(flush_error), flush_error, flush_error.__traceback__)
            raise
        self._opened.__exit__(error_type, error, trace)


def _column_types(cloud: PointCloud) -> dict[str, str]:
    position = "f8" if cloud.xyz.dtype == torch.float64 else "f4"
    types = {"xyz": position, "normals": "f4", "rgb": "u1", "confidence": "f4", "num_views": "u1"}
    return {field: types[field] for field in _COLUMNS if getattr(cloud, field) is not None}


def _header(types: dict[str, str], count: int) -> bytes:
    """The header; its length does not depend on the count, so that it can be overwritten in place."""
    # The padding is in a comment, not in the number: some readers stumble over "0000123".
    padding = "." * (_COUNT_DIGITS - len(str(count)))
    lines = ["ply", "format binary_little_endian 1.0", f"comment gbinet {padding}", f"element vertex {count}"]
    lines += [f"property {_PLY_NAME[types[field]]} {name}" for field in types for name in _COLUMNS[field]]
    return ("\n".join(lines) + "\nend_header\n").encode("ascii")


def _fill(buffer: Array, cloud: PointCloud, types: dict[str, str]) -> Array:
    """Write the points as rows of the file into the first rows of a buffer; returns these."""
    rows = buffer[: len(cloud)]
    for field in types:
        tensor: Tensor = getattr(cloud, field)
        values = tensor.detach().cpu().numpy().reshape(len(cloud), -1)  # [N, 1 or 3]
        for column, name in enumerate(_COLUMNS[field]):
            rows[name] = values[:, column]
    return rows


# ---- reading ----------------------------------------------------------------------------------------------

_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_BYTE_ORDER = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_MAX_HEADER_LINES = 10_000
_MAX_LINE = 4096
_OTHER_NAMES = {"diffuse_red": "red", "diffuse_green": "green", "diffuse_blue": "blue"}


@dataclass(frozen=True)
class _Property:
    name: str
    type: str  # numpy type without byte order
    count_type: str | None = None  # set for lists


@dataclass(frozen=True)
class _PlyElement:
    name: str
    count: int
    properties: tuple[_Property, ...] = ()

    @property
    def fixed(self) -> tuple[_Property, ...]:
        """The properties before the first list: they have the same offset in every row."""
        return tuple(itertools.takewhile(lambda p: p.count_type is None, self.properties))

    @property
    def has_lists(self) -> bool:
        return len(self.fixed) < len(self.properties)

    def smallest_row(self, text: bool) -> int:
        """The fewest bytes that one row can take."""
        if text:  # one digit and one separator
            return max(1, 2 * len(self.properties))
        return sum(np.dtype(p.count_type or p.type).itemsize for p in self.properties)


def read_ply(path: str | Path) -> PointCloud:
    """Read the vertices of a PLY file: text or binary, either byte order; unknown properties are skipped."""
    path = Path(path)
    with open_sized(path) as (file, size):
        encoding, elements = _read_header(file, path)
        _check_sizes(path, elements, encoding == "ascii", size - file.tell())
        columns = (
            _read_text(file, path, elements)
            if encoding == "ascii"
            else _read_binary(file, path, elements, _BYTE_ORDER[encoding])
        )
    return _to_cloud(path, columns)


def ply_count(path: str | Path) -> int:
    """The number of points that a PLY file says it has."""
    path = Path(path)
    with open_sized(path) as (file, _):
        return next((e.count for e in _read_header(file, path)[1] if e.name == "vertex"), 0)


def ply_pieces(path: str | Path, points: int = _CHUNK) -> Iterator[PointCloud]:
    """The cloud of a PLY file, `points` at a time; text files, and those with lists, come in one piece."""
    path = Path(path)
    with open_sized(path) as (file, size):
        encoding, elements = _read_header(file, path)
        _check_sizes(path, elements, encoding == "ascii", size - file.tell())
        element = elements[0]
        if encoding == "ascii" or element.name != "vertex" or element.has_lists:
            yield read_ply(path)
            return
        layout = np.dtype([(p.name, _BYTE_ORDER[encoding] + p.type) for p in element.fixed])
        for start in range(0, max(1, element.count), points):
            data = file.read(min(points, element.count - start) * layout.itemsize)
            yield _to_cloud(path, _columns_of(np.frombuffer(data, layout)))


def _read_header(file: BinaryIO, path: Path) -> tuple[str, list[_PlyElement]]:
    if file.readline(8).rstrip() != b"ply":
        raise FormatError(path, "not a PLY file: it does not begin with 'ply'", "line 1")
    """Encoding (a key of _BYTE_ORDER) and elements; leaves the file at the first byte behind the header."""
    encoding, elements = "", list[_PlyElement]()
    for number in range(2, _MAX_HEADER_LINES):
        where = f"line {number}"
        line = file.readline(_MAX_LINE)
        words = line.decode("ascii", errors="replace").split()
        if not line.endswith(b"\n"):
            raise FormatError(path, "the header has no 'end_header' line", where)
        match words:
            case ["end_header"]:
                if not encoding:
                    raise FormatError(path, "the header has no 'format' line", where)
                return encoding, elements
            case [] | ["comment" | "obj_info", *_]:
                pass
            case ["format", name, "1.0"] if name in _BYTE_ORDER:
                encoding = name
            case ["element", name, count] if count.isdecimal() and len(count) <= _COUNT_DIGITS:
                elements.append(_PlyElement(name, int(count)))
            case ["property", "list", count_type, type_name, name] if elements and type_name in _TYPES:
                if _TYPES.get(count_type, "f4").startswith("f"):
                    raise FormatError(path, f"a list cannot be counted by '{count_type}'", where)
                _add_property(elements, _Property(name, _TYPES[type_name], _TYPES[count_type]))
            case ["property", type_name, name] if elements and type_name in _TYPES:
                _add_property(elements, _Property(name, _TYPES[type_name]))
            case _:
                raise FormatError(path, f"not understood: '{' '.join(words)[:80]}'", where)
    raise FormatError(path, f"the header has more than {_MAX_HEADER_LINES} lines", "header")


def _add_property(elements: list[_PlyElement], new: _Property) -> None:
    last = elements[-1]
    elements[-1] = _PlyElement(last.name, last.count, (*last.properties, new))


def _check_sizes(path: Path, elements: list[_PlyElement], text: bool, available: int) -> None:
    """Compare what the header promises with what the file holds, before anything is allocated."""
    needed = 0
    for element in elements:
        needed += element.count * element.smallest_row(text)
        if needed > available + 1:  # the last line of a text file may lack its line end
            raise FormatError(
                path,
                f"cut short: {element.count} rows of '{element.name}' need at least {needed} bytes, "
                f"{available} follow the header",
                "header",
            )
        if element.name == "vertex":
            names = [p.name for p in element.properties]
            if len(set(names)) < len(names):
                raise FormatError(path, "two properties of 'vertex' have the same name", "header")
            if not {"x", "y", "z"} <= {p.name for p in element.fixed}:
                raise FormatError(path, "the vertices have no x, y, z", "header")
            return
    raise FormatError(path, "there is no 'vertex' element", "header")


def _read_binary(file: BinaryIO, path: Path, elements: list[_PlyElement], order: str) -> dict[str, Array]:
    position = file.tell()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for element in elements:
            starts = _row_starts(data, path, element, order, position)
            if element.name != "vertex":
                position = starts[-1]
                continue
            layout = np.dtype([(p.name, order + p.type) for p in element.fixed])
            if isinstance(starts, range):
                # No name for the rows: the map cannot close while an array refers to it.
                return _columns_of(np.frombuffer(data, layout, element.count, position))
            packed = b"".join(data[start : start + layout.itemsize] for start in starts[:-1])
            return _columns_of(np.frombuffer(packed, layout))
    raise FormatError(path, "there is no 'vertex' element", "header")


def _columns_of(rows: Array) -> dict[str, Array]:
    """Copies of the columns that a PointCloud can hold, in native byte order."""
    names = _wanted(list(rows.dtype.names or ()))
    return {name: rows[name].astype(rows.dtype[name].newbyteorder("=")) for name in names}


def _row_starts(
    data: mmap.mmap, path: Path, element: _PlyElement, order: str, position: int
) -> range | array[int]:
    """Byte offsets of the element's rows, and at the end the offset behind them."""
    if not element.has_lists:
        size = element.smallest_row(text=False)
        end = position + element.count * size
        if end > len(data):
            raise FormatError(path, f"cut short in element '{element.name}'", f"byte {len(data)}")
        return range(position, end + 1, size) if size else range(position, position + 1)
    starts = array("q", [position])
    for row in range(element.count):
        for part in element.properties:
            size = np.dtype(part.type).itemsize
            if part.count_type is None:
                position += size
                continue
            width = np.dtype(part.count_type).itemsize
            length = int.from_bytes(
                data[position : position + width],
                "little" if order == "<" else "big",
                signed=part.count_type.startswith("i"),
            )
            if length < 0:
                raise FormatError(path, f"a list of '{element.name}' has length {length}", f"byte {position}")
            position += width + length * size
        if position > len(data):
            raise FormatError(path, f"cut short in row {row} of '{element.name}'", f"byte {len(data)}")
        if element.name == "vertex":
            starts.append(position)
        else:
            starts[-1] = position  # only the end is needed
    return starts


def _read_text(file: BinaryIO, path: Path, elements: list[_PlyElement]) -> dict[str, Array]:
    skipped = 0
    for element in elements:
        if element.name != "vertex":
            for _ in range(element.count):
                file.readline()
            skipped += element.count
            continue
        names = [p.name for p in element.fixed]
        wanted = _wanted(names)
        columns = [names.index(name) for name in wanted]
        lines = (line.decode("ascii", errors="replace") for line in itertools.islice(file, element.count))
        try:
            table = np.loadtxt(lines, usecols=columns, ndmin=2, comments=None) if element.count else None
        except ValueError as error:
            raise FormatError(
                path, f"a vertex is not a row of numbers: {error}", "rows of vertices"
            ) from error
        if table is None:
            return {name: np.zeros(0, element.fixed[names.index(name)].type) for name in wanted}
        if len(table) != element.count:
            raise FormatError(path, f"cut short: {element.count} vertices announced", f"vertex {len(table)}")
        types = {p.name: p.type for p in element.fixed}
        return {name: _as_type(path, name, table[:, i], types[name]) for i, name in enumerate(wanted)}
    raise FormatError(path, "there is no 'vertex' element", "header")


def _as_type(path: Path, name: str, values: Array, dtype: str) -> Array:
    if dtype.startswith("f"):
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    limits = np.iinfo(dtype)
    bad = ~((values >= limits.min) & (values <= limits.max))
    if bad.any():
        row = int(bad.argmax())
        raise FormatError(path, f"'{name}' = {values[row]:g} does not fit its type", f"vertex {row}")
    return values.astype(dtype)


def _wanted(names: list[str]) -> list[str]:
    """Of a file's property names, those that a PointCloud can hold."""
    ours = {name for group in _COLUMNS.values() for name in group} | set(_OTHER_NAMES)
    return [name for name in names if name in ours]


def _to_cloud(path: Path, columns: dict[str, Array]) -> PointCloud:
    for other, ours in _OTHER_NAMES.items():
        if other in columns:
            columns.setdefault(ours, columns[other])
    fields: dict[str, Tensor | None] = dict.fromkeys(_COLUMNS)
    for field, names in _COLUMNS.items():
        if not all(name in columns for name in names):
            continue
        parts = [_convert(columns[name], field) for name in names]
        fields[field] = torch.from_numpy(np.stack(parts, axis=-1) if len(parts) > 1 else parts[0])
    xyz = fields.pop("xyz")
    if xyz is None:
        raise FormatError(path, "the vertices have no x, y, z", "header")
    return PointCloud(xyz, **fields)


def _convert(values: Array, field: str) -> Array:
    """Values of a file's column -> the type that PointCloud documents."""
    dtype = values.dtype
    if field == "xyz":
        return values if dtype == np.float32 else values.astype(np.float64)
    if field in ("normals", "confidence"):
        return values.astype(np.float32)
    if dtype.kind == "f":
        values = np.rint(np.nan_to_num(values) * (255.0 if field == "rgb" else 1.0))  # colours are in [0, 1]
    elif field == "rgb" and dtype == np.uint16:
        values = values // 257
    small: Array = values.clip(0, 255).astype(np.uint8)
    return small
