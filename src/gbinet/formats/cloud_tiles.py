"""A cloud beyond what one file should hold: cubes on a grid, a file each, and an index.

| file                 | holds                                                                              |
|----------------------|------------------------------------------------------------------------------------|
| `tile_X_Y_Z.ply`     | points with X <= x / edge < X + 1 and so on, in the order in which they came       |
| `index.json`         | edge, number of points, and for each tile its name, corners, points and bytes      |

Pieces of the cloud are sorted into parts, and the parts of a tile joined at the end. Both can be done by
others (`Helpers`); the bytes do not depend on who does it.
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


class Helpers(Protocol):
    """Who does pieces of work, now or later, here or elsewhere."""

    def submit(self, function: Callable[..., object], *arguments: object) -> None: ...

    def finish(self) -> None:
        """Wait for all of them."""


class _AtOnce:
    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)

    def finish(self) -> None:
        pass


class TileWriter:
    """A CloudWriter: `with TileWriter(folder, 50.0) as writer: writer.append(cloud)`."""

    def __init__(self, folder: str | Path, edge: float, helpers: Helpers | None = None) -> None:
        check_positive("--tiles", edge)
        self.folder, self.edge, self.count = Path(folder).absolute(), edge, 0
        self._helpers = helpers or _AtOnce()
        self._held: list[PointCloud] = []
        self._pieces = 0

    @property
    def _parts(self) -> Path:
        return self.folder / _PARTS

    def __enter__(self) -> Self:
        shutil.rmtree(self._parts, ignore_errors=True)  # of a run that was killed
        self._parts.mkdir(parents=True)
        return self

    def append(self, cloud: PointCloud) -> None:
        self.count += len(cloud)
        self._held.append(cloud)
        if sum(map(len, self._held)) >= _PIECE:
            self._sort_held()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._sort_held()
                self._helpers.finish()
                self._join()
        finally:
            shutil.rmtree(self._parts, ignore_errors=True)

    def _sort_held(self) -> None:
        held, self._held = [cloud for cloud in self._held if len(cloud)], []
        if held:
            cloud = PointCloud.cat(held)
            self._helpers.submit(sort_into_parts, cloud, self.edge, self._parts, self._pieces)
            self._pieces += 1

    def _join(self) -> None:
        tiles = sorted(_cell(path) for path in self._parts.iterdir() if path.is_dir())
        for cell in tiles:
            self._helpers.submit(join_parts, self._parts / _name(cell), self._parts / f"{_name(cell)}.ply")
        self._helpers.finish()
        earlier = _listed(self.folder)
        # First an index of all that may lie here from now on: a run that dies below leaves nothing unlisted.
        coming = sorted({*earlier, *(f"{_name(cell)}.ply" for cell in tiles)})
        unfinished = {"format": _FORMAT, "unfinished": True, "tiles": [{"file": name} for name in coming]}
        write_json(self.folder / INDEX, unfinished)
        for name in earlier:
            (self.folder / name).unlink(missing_ok=True)
        entries = []
        for cell in tiles:
            path = (self._parts / f"{_name(cell)}.ply").replace(self.folder / f"{_name(cell)}.ply")
            entries.append(
                {
                    "file": path.name,
                    "low": [self.edge * c for c in cell],
                    "high": [self.edge * (c + 1) for c in cell],
                    "points": ply_count(path),
                    "bytes": path.stat().st_size,
                }
            )
        content = {"format": _FORMAT, "edge": self.edge, "points": self.count, "tiles": entries}
        write_json(self.folder / INDEX, content)


def sort_into_parts(cloud: PointCloud, edge: float, parts: Path, number: int) -> None:
    """The points of one piece into a file for each tile, named by the number of the piece."""
    cells = np.floor(cloud.xyz.double().numpy() / edge).astype(np.int64)  # [N, 3]
    unique, inverse = np.unique(cells, axis=0, return_inverse=True)
    for tile, cell in enumerate(unique.tolist()):
        chosen = torch.from_numpy(np.flatnonzero(inverse.reshape(-1) == tile))
        with PlyWriter(parts / _name(cell) / f"{number:08d}.ply") as writer:
            writer.append(cloud[chosen])


def join_parts(parts: Path, tile: Path) -> None:
    """All parts of a tile, in the order of their numbers."""
    with PlyWriter(tile) as writer:
        for path in sorted(parts.glob("[0-9]*.ply")):
            for piece in ply_pieces(path):
                writer.append(piece)


def _name(cell: list[int]) -> str:
    return "tile_" + "_".join(map(str, cell))


def _cell(folder: Path) -> list[int]:
    return [int(number) for number in folder.name.removeprefix("tile_").split("_")]


def _listed(folder: Path) -> list[str]:
    """Tiles that an index in the folder lists; a record that somebody changed must not lead out of it."""
    record = read_record(folder / INDEX)
    tiles = record.get("tiles") if record.get("format") == _FORMAT else None
    names = [str(tile.get("file")) for tile in tiles or [] if isinstance(tile, dict)]
    return [name for name in names if name.startswith("tile_") and "/" not in name and "\\" not in name]
