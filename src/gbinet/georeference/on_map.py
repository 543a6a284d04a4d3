"""Clouds in map coordinates, by the georeference.json that a run leaves in its output folder.

In such a folder, .ply files are in the local frame of the result; .las, .laz and .xyz files are on the map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch

from gbinet.errors import FormatError, GBiNetError, InputError
from gbinet.formats.cloud_files import CloudWriter, cloud_pieces, cloud_writer
from gbinet.formats.optional import optional
from gbinet.formats.reading import is_file, names_in, read_json, read_record
from gbinet.pointcloud import PointCloud

FILE = "georeference.json"
_ON_MAP = (".las", ".laz", ".xyz")


@dataclass(frozen=True)
class MapFrame:
    """From local to map coordinates."""

    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)  # local coordinates plus this are map coordinates
    crs: str | None = None  # of the map, e.g. EPSG:32615

    def note(self, said_by: Path) -> str:
        """A line for who writes a cloud in this frame, which the file `said_by` describes."""
        where = "" if self.crs is None else f" in {self.crs}"
        return f"map coordinates{where}, by the offset in {said_by}"

    def with_crs(self, given: str | None, said_by: Path) -> MapFrame:
        """This frame, with the coordinate system that a user gives where `said_by` names none."""
        if given is None or self.crs is None:
            return replace(self, crs=self.crs or given)
        if not _same_crs(self.crs, given):
            raise InputError(f"--crs {given}: {said_by} says that the cloud is in {self.crs}; omit --crs")
        return self


def frame_in(folder: Path) -> MapFrame | None:
    """The frame that the georeference.json in a folder describes; None if there is no such file."""
    path = folder / FILE
    if not is_file(path):
        return None
    content = read_json(path)
    try:
        east, north, up = (float(value) for value in content["offset"])
        crs = content["crs"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            path, f"is not a georeference of gbinet ({type(error).__name__}: {error})"
        ) from error
    if not np.isfinite([east, north, up]).all() or not isinstance(crs, str | None):
        raise FormatError(path, "is not a georeference of gbinet: its offset or its crs is of the wrong kind")
    return MapFrame((east, north, up), crs)


def is_on_map(path: Path) -> bool:
    """Whether clouds with this ending are written in map coordinates where these are known."""
    return path.suffix.lower() in _ON_MAP


def map_writer(path: Path, frame: MapFrame | None) -> CloudWriter:
    """A writer that takes local coordinates and, if the ending is one for maps, writes map coordinates."""
    if frame is None or not is_on_map(path):
        return cloud_writer(path)
    return _Moved(cloud_writer(path, frame.crs), frame)


def copy_cloud(source: Path, target: Path, frame: MapFrame | None) -> int:
    """Convert a cloud in the local frame piece by piece, as `map_writer` writes it; returns the points."""
    with map_writer(target, frame) as writer:
        for piece in cloud_pieces(source):
            writer.append(piece)
        return writer.count


def renew_copies(cloud: Path, frame: MapFrame | None) -> tuple[list[Path], list[str]]:
    """Write the copies of a cloud.ply again that a run left beside it in other formats.

    Returns them, and notes on those that cannot be written: they are removed. Other clouds have no copies.
    """
    if cloud.name != "cloud.ply":
        return [], []
    listed = names_in(read_record(cloud.parent / "run.json"), "files")
    written, notes = list[Path](), list[str]()
    for path in (cloud.with_suffix(ending) for ending in _ON_MAP):
        if path.name not in listed or not is_file(path):
            continue
        try:
            copy_cloud(cloud, path, frame)
            written.append(path)
        except GBiNetError as error:
            path.unlink()
            notes.append(f"{path} showed the cloud as it was before, and is removed: {error}")
    return written, notes


class _Moved:
    """A CloudWriter that moves all points to the map and passes them on."""

    def __init__(self, writer: CloudWriter, frame: MapFrame) -> None:
        self._writer = writer
        self._offset = torch.tensor(frame.offset, dtype=torch.float64)

    @property
    def count(self) -> int:
        return self._writer.count

    def append(self, cloud: PointCloud) -> None:
        self._writer.append(replace(cloud, xyz=cloud.xyz.double() + self._offset))

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)


def _same_crs(one: str, other: str) -> bool:
    pyproj = optional("pyproj", "--crs", "geo")
    try:
        return bool(pyproj.CRS.from_user_input(one) == pyproj.CRS.from_user_input(other))
    except pyproj.exceptions.CRSError as error:
        raise InputError(f"--crs {other}: is not a coordinate system; give e.g. EPSG:32615") from error
