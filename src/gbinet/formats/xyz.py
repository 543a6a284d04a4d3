"""Clouds as text: one point per line, `x y z` or `x y z red green blue` with colours from 0 to 255."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch

from gbinet.errors import FormatError
from gbinet.formats.atomic import atomic_file
from gbinet.formats.reading import open_sized
from gbinet.pointcloud import PointCloud

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 16  # lines at a time
_DIGITS = {torch.float32: 9, torch.float64: 13}  # float32 comes back exactly; a millionth of a metre in UTM
_MAX_LINE = 4096


class XyzWriter:
    """Writes the cloud piece by piece. The first piece decides whether there are colours."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.count = 0
        self._colours: bool | None = None
        self._opened = atomic_file(self.path)

    def __enter__(self) -> XyzWriter:
        self._file: BinaryIO = self._opened.__enter__()
        return self

    def append(self, cloud: PointCloud) -> None:
        if self._colours is None:
            self._colours = cloud.rgb is not None
        digits = _DIGITS.get(cloud.xyz.dtype, 9)
        layout = " ".join([f"%.{digits}g"] * 3 + ["%d"] * 3 * self._colours)
        for start in range(0, len(cloud), _CHUNK):
            part = cloud[start : start + _CHUNK]
            columns = part.xyz.detach().cpu().double().numpy()  # [N, 3]
            if self._colours:
                grey = torch.full((len(part), 3), 128, dtype=torch.uint8)
                rgb = (grey if part.rgb is None else part.rgb).cpu().numpy()
                columns = np.concatenate([columns, rgb.astype(np.float64)], axis=1)
            self._file.write("".join(f"{layout % tuple(row)}\n" for row in columns.tolist()).encode())
            self.count += len(part)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)


def read_xyz(path: str | Path) -> PointCloud:
    """Positions, and colours where columns 4 to 6 hold whole numbers from 0 to 255; the rest is skipped."""
    path = Path(path)
    parts: list[Array] = []
    with open_sized(path) as (file, _):
        for number in itertools.count():
            lines = list(itertools.islice(_lines(path, file), _CHUNK))
            if not lines:
                break
            try:
                table = np.loadtxt(lines, ndmin=2, comments=None)
            except ValueError as error:
                where = f"lines {number * _CHUNK + 1} to {number * _CHUNK + len(lines)}"
                raise FormatError(path, f"is not a table of numbers: {error}", where) from error
            if table.shape[1] < 3 or (parts and table.shape[1] != parts[0].shape[1]):
                raise FormatError(path, "its lines are not all x y z, or all x y z red green blue", "lines")
            parts.append(table[:, :6])
    table = np.concatenate(parts) if parts else np.zeros((0, 3))
    colours = table[:, 3:]
    are_bytes = (colours == np.rint(colours)) & (colours >= 0) & (colours < 256)
    has_colours = table.shape[1] == 6 and bool(are_bytes.all())
    rgb = torch.from_numpy(colours.astype(np.uint8)) if has_colours else None
    return PointCloud(torch.from_numpy(table[:, :3].copy()), rgb=rgb)


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """Lines that are neither blank nor comments."""
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise FormatError(path, "has a line that is too long for a point", f"byte {file.tell()}")
        text = line.decode("ascii", errors="replace").strip()
        if text and not text.startswith(("#", "//")):
            yield text
