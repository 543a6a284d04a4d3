"""Point clouds as files; the ending says which format.

| ending        | format                                                                      |
|---------------|-----------------------------------------------------------------------------|
| `.ply`        | all that is known about the points; exact                                   |
| `.las` `.laz` | position, colour, confidence, number of views, coordinate system            |
| `.xyz`        | text: `x y z`, or `x y z red green blue`                                    |

All writers take a cloud piece by piece, so that it need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from gbinet.errors import InputError
from gbinet.formats.las import LasWriter, read_las
from gbinet.formats.ply import PlyWriter, ply_pieces, read_ply
from gbinet.formats.xyz import XyzWriter, read_xyz
from gbinet.pointcloud import PointCloud

SUFFIXES = (".ply", ".las", ".laz", ".xyz")
_PIECE = 1 << 20  # points handed on at a time


class CloudWriter(Protocol):
    """`with cloud_writer(path) as writer: writer.append(cloud)`; the file appears when the block ends."""

    @property
    def count(self) -> int:
        """Points written so far."""

    def append(self, cloud: PointCloud) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def is_cloud_name(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def is_las_name(path: Path) -> bool:
    return path.suffix.lower() in (".las", ".laz")


def check_cloud_name(path: Path) -> None:
    """Refuse an ending that is not one of SUFFIXES."""
    if not is_cloud_name(path):
        ending = f"'{path.suffix}'" if path.suffix else "a name without an ending"
        raise InputError(f"{path}: a cloud is not written as {ending}; choose one of {', '.join(SUFFIXES)}")


def cloud_writer(path: str | Path, crs: str | None = None) -> CloudWriter:
    """The writer for this file ending. `crs`: coordinate system for LAS, e.g. EPSG:32615."""
    path = Path(path)
    check_cloud_name(path)
    if path.suffix.lower() == ".ply":
        return PlyWriter(path)
    return XyzWriter(path) if path.suffix.lower() == ".xyz" else LasWriter(path, crs)


def write_cloud(path: str | Path, cloud: PointCloud, crs: str | None = None) -> Path:
    with cloud_writer(path, crs) as writer:
        for start in range(0, max(1, len(cloud)), _PIECE):
            writer.append(cloud[start : start + _PIECE])
    return Path(path)


def read_cloud(path: str | Path) -> PointCloud:
    path = Path(path)
    check_cloud_name(path)
    if path.suffix.lower() == ".ply":
        return read_ply(path)
    return read_xyz(path) if path.suffix.lower() == ".xyz" else read_las(path)


def cloud_pieces(path: str | Path) -> Iterator[PointCloud]:
    """The cloud of a file piece by piece; PLY files are never held in memory as a whole."""
    path = Path(path)
    if path.suffix.lower() == ".ply":
        yield from ply_pieces(path)
    else:
        yield read_cloud(path)
