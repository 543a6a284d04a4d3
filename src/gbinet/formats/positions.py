"""Tables of known camera positions: `name,x,y,z`, or `name,latitude,longitude,altitude`."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from gbinet.errors import FormatError
from gbinet.formats.reading import read_bounded

_MAX_BYTES = 64 << 20
_COLUMNS = {  # name of a column in the table -> what it holds
    **dict.fromkeys(("name", "image", "photo", "file", "filename", "label", "#label"), "name"),
    **dict.fromkeys(("x", "east", "easting", "e"), "x"),
    **dict.fromkeys(("y", "north", "northing", "n"), "y"),
    **dict.fromkeys(("z", "up", "height", "h", "altitude", "alt", "elevation"), "z"),
    **dict.fromkeys(("lat", "latitude"), "latitude"),
    **dict.fromkeys(("lon", "lng", "long", "longitude"), "longitude"),
}


@dataclass(frozen=True)
class Positions:
    """Where photos were taken."""

    by_photo: dict[str, tuple[float, float, float]]  # name -> x y z, or longitude, latitude, altitude
    degrees: bool  # the first two numbers are longitude and latitude


def read_positions(path: Path) -> Positions:
    """Read a table with a header line; columns are separated by comma, semicolon or tab."""
    try:
        text = read_bounded(path, _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, "is not a text file", f"byte {error.start}") from error
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    rows = csv.reader(io.StringIO(text), delimiter=separator)
    try:
        header = [_COLUMNS.get(cell.strip().lower(), "") for cell in next(rows, [])]
        degrees = "latitude" in header and "longitude" in header
        wanted = ("longitude", "latitude", "z") if degrees else ("x", "y", "z")
        missing = [name for name in ("name", *wanted) if name not in header]
        if missing:
            raise FormatError(
                path, f"has no column {', '.join(missing)}; expected name,x,y,z or name,lat,lon,alt", "line 1"
            )
        columns = [header.index(name) for name in ("name", *wanted)]
        by_photo = {}
        for row in rows:
            if any(cell.strip() for cell in row):
                name, position = _parse_row(path, row, columns, f"line {rows.line_num}", degrees)
                by_photo[name] = position
    except csv.Error as error:
        raise FormatError(path, f"is not a table ({error})", f"line {rows.line_num}") from error
    return Positions(by_photo, degrees)


def _parse_row(
    path: Path, row: list[str], columns: list[int], where: str, degrees: bool
) -> tuple[str, tuple[float, float, float]]:
    """Name and position, from these columns of a row."""
    excerpt = " ".join(row)[:60]
    try:
        name, x, y, z = (row[column].strip() for column in columns)
        values = (float(x), float(y), float(z))
    except (IndexError, ValueError) as error:
        raise FormatError(path, f"is not a name and three numbers: {excerpt!r}", where) from error
    good = all(math.isfinite(v) for v in values)
    if degrees:
        good &= abs(values[0]) <= 180 and abs(values[1]) <= 90
    if not good:
        bounds = "finite numbers" + ("; longitude within 180, latitude within 90 degrees" if degrees else "")
        raise FormatError(path, f"is not a position ({bounds}): {excerpt!r}", where)
    return name, values
