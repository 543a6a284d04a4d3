"""A cloud too large for one file: cubes on a grid, one file each, and an index.

| file                 | holds                                                                              |
|----------------------|------------------------------------------------------------------------------------|
| `tile_X_Y_Z.ply`     | points with X <= x / edge < X + 1 and so on, in the order in which they came       |
| `index.json`         | edge, number of points, and for each tile its name, corners, points and bytes      |

Pieces of the cloud are sorted into parts, and the parts of a tile are joined at the end. A `TaskRunner` may
do both elsewhere; the files are the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import torch

from gbinet.errors import check_positive
from gbinet.formats.atomic import write_json
from gbinet.formats.ply import PlyWriter, ply_count, ply_pieces
from gbinet.formats.reading import read_record
from gbinet.pointcloud import PointCloud

INDEX = "index.json"
_PARTS = ".gbinet-parts"  # in the folder, while it is written
_PIECE = 1 << 20  # points that are sorted at a time
_FORMAT = "gbinet-tiles-1"


class TaskRunner(Protocol):
    """Runs tasks: now or later, in this process or elsewhere."""

    def submit(self, function: Callable[..., object], *arguments: object) -> None: ...

    def finish(self) -> None:
        """Wait for all tasks that were submitted."""


class _RunAtOnce:
    """The TaskRunner that runs every task in `submit`."""

    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)

    def finish(self) -> None:
        pass


class TileWriter:
    """A CloudWriter: `with TileWriter(folder, 50.0) as writer: writer.append(cloud)`."""

    def __init__(self, folder: str | Path, edge: float, tasks: TaskRunner | None = None) -> None:
        check_positive("--tiles", edge)
        self.folder, self.edge, self.count = Path(folder).absolute(), edge, 0
        self._tasks = tasks or _RunAtOnce()
        self._buffer: list[PointCloud] = []  # points that are not sorted yet
        self._pieces = 0  # that were sorted

    @property
    def _parts(self) -> Path:
        return self.folder / _PARTS

    def __enter__(self) -> Self:
        shutil.rmtree(self._parts, ignore_errors=True)  # of a run that was killed
        self._parts.mkdir(parents=True)
        return self

    def append(self, cloud: PointCloud) -> None:
        self.count += len(cloud)
        self._buffer.append(cloud)
        if sum(map(len, self._buffer)) >= _PIECE:
            self._sort_buffer()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._sort_buffer()
                self._tasks.finish()
                self._join_tiles()
        finally:
            shutil.rmtree(self._parts, ignore_errors=True)

    def _sort_buffer(self) -> None:
        clouds, self._buffer = [cloud for cloud in self._buffer if len(cloud)], []
        if clouds:
            cloud = PointCloud.cat(clouds)
            self._tasks.submit(sort_into_parts, cloud, self.edge, self._parts, self._pieces)
            self._pieces += 1

    def _join_tiles(self) -> None:
        cells = sorted(_cell(path) for path in self._parts.iterdir() if path.is_dir())
        for cell in cells:
            self._tasks.submit(join_parts, self._parts / _name(cell), self._parts / f"{_name(cell)}.ply")
        self._tasks.finish()
        earlier = _listed_tiles(self.folder)
        # First an index of old and new tiles: if the run dies below, every tile in the folder is listed.
        names = sorted({*earlier, *(f"{_name(cell)}.ply" for cell in cells)})
        unfinished = {"format": _FORMAT, "unfinished": True, "tiles": [{"file": name} for name in names]}
        write_json(self.folder / INDEX, unfinished)
        for name in earlier:
            (self.folder / name).unlink(missing_ok=True)
        entries = [self._move_tile(cell) for cell in cells]
        content = {"format": _FORMAT, "edge": self.edge, "points": self.count, "tiles": entries}
        write_json(self.folder / INDEX, content)

    def _move_tile(self, cell: list[int]) -> dict[str, object]:
        """Move a joined tile to the folder; returns its entry of the index."""
        path = (self._parts / f"{_name(cell)}.ply").replace(self.folder / f"{_name(cell)}.ply")
        return {
            "file": path.name,
            "low": [self.edge * c for c in cell],
            "high": [self.edge * (c + 1) for c in cell],
            "points": ply_count(path),
            "bytes": path.stat().st_size,
        }


def sort_into_parts(cloud: PointCloud, edge: float, parts: Path, number: int) -> None:
    """Write the points of one piece to a file per tile, which bears the number of the piece."""
    cells = np.floor(cloud.xyz.double().numpy() / edge).astype(np.int64)  # [N, 3]
    unique, inverse = np.unique(cells, axis=0, return_inverse=True)
    for tile, cell in enumerate(unique.tolist()):
        chosen = torch.from_numpy(np.flatnonzero(inverse.reshape(-1) == tile))
        with PlyWriter(parts / _name(cell) / f"{number:08d}.ply") as writer:
            writer.append(cloud[chosen])


def join_parts(parts: Path, tile: Path) -> None:
    """Write all parts of a tile to one file, in the order of their numbers."""
    with PlyWriter(tile) as writer:
        for path in sorted(parts.glob("[0-9]*.ply")):
            for piece in ply_pieces(path):
                writer.append(piece)


def _name(cell: list[int]) -> str:
    return "tile_" + "_".join(map(str, cell))


def _cell(folder: Path) -> list[int]:
    return [int(number) for number in folder.name.removeprefix("tile_").split("_")]


def _listed_tiles(folder: Path) -> list[str]:
    """Names of the tiles in a folder's index; names that lead out of the folder are ignored."""
    record = read_record(folder / INDEX)
    tiles = record.get("tiles") if record.get("format") == _FORMAT else None
    names = [str(tile.get("file")) for tile in tiles or [] if isinstance(tile, dict)]
    return [name for name in names if name.startswith("tile_") and "/" not in name and "\\" not in name]
