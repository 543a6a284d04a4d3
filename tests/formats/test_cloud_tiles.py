"""A cloud in tiles is the cloud: every point once, in its cube, in the order in which it came."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.formats import cloud_tiles
from gbinet.formats.cloud_tiles import TileWriter
from gbinet.formats.ply import read_ply
from gbinet.formats.reading import read_json
from gbinet.pointcloud import PointCloud


class Later:
    """A TaskRunner that does everything at the end, in a random order."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def submit(self, function: Callable[..., object], *arguments: object) -> None:
        self.waiting.append(lambda: function(*arguments))

    def finish(self) -> None:
        random.Random(len(self.waiting)).shuffle(self.waiting)
        while self.waiting:
            self.waiting.pop()()


def clouds(sizes: list[int], seed: int) -> list[PointCloud]:
    generator = torch.Generator().manual_seed(seed)
    numbers = iter(range(10**6))
    return [
        PointCloud(
            3 * torch.randn(size, 3, generator=generator),
            confidence=torch.tensor([float(next(numbers)) for _ in range(size)]),
        )
        for size in sizes
    ]


@settings(max_examples=10)
@given(
    sizes=st.lists(st.integers(0, 30), max_size=6), seed=st.integers(0, 9), edge=st.sampled_from([2.0, 5.0])
)
def test_every_point_is_in_its_tile(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int, edge: float
) -> None:
    parts = clouds(sizes, seed)
    folders = [tmp_path_factory.mktemp("tiles") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cloud_tiles, "_PIECE", 25)
        for folder, tasks in zip(folders, (None, Later()), strict=True):
            with TileWriter(folder, edge, tasks) as writer:
                for part in parts:
                    writer.append(part)
    one, other = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert one == other
    index = read_json(folders[0] / "index.json")
    assert set(one) == {"index.json", *(tile["file"] for tile in index["tiles"])}
    seen = []
    for tile in index["tiles"]:
        cloud = read_ply(folders[0] / tile["file"])
        low, high = torch.tensor(tile["low"]), torch.tensor(tile["high"])
        assert bool(((cloud.xyz >= low) & (cloud.xyz < high)).all())
        assert cloud.confidence is not None and len(cloud) == tile["points"] > 0
        numbers = cloud.confidence.tolist()
        assert numbers == sorted(numbers)
        seen += numbers
    assert sorted(seen) == list(range(sum(sizes))) and index["points"] == sum(sizes)


def test_a_second_run_replaces_the_tiles_of_the_first_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.ply").write_text("mine")
    for shift in (0.0, 100.0):
        with TileWriter(tmp_path, 10.0) as writer:
            writer.append(PointCloud(torch.full((2, 3), shift)))
    assert {p.name for p in tmp_path.iterdir()} == {"notes.ply", "index.json", "tile_10_10_10.ply"}


def test_a_failure_keeps_what_was_there(tmp_path: Path) -> None:
    with TileWriter(tmp_path, 10.0) as writer:
        writer.append(PointCloud(torch.zeros(2, 3)))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(RuntimeError), TileWriter(tmp_path, 10.0) as writer:
        writer.append(PointCloud(torch.ones(5, 3)))
        raise RuntimeError("stopped")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    with pytest.raises(InputError, match="--tiles must be positive"):
        TileWriter(tmp_path, 0.0)


def test_a_run_that_dies_among_its_tiles_leaves_none_unlisted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cloud,) = clouds([60], 1)
    real, moved = Path.replace, []

    def replace(path: Path, target: Path) -> Path:
        if path.name.startswith("tile_"):
            moved.append(path)
            if len(moved) == 3:
                raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt), TileWriter(tmp_path, 2.0) as writer:
        writer.append(cloud)
    monkeypatch.undo()
    assert len(list(tmp_path.glob("tile_*.ply"))) == 2
    with TileWriter(tmp_path, 50.0) as writer:
        writer.append(cloud)
    listed = {entry["file"] for entry in read_json(tmp_path / "index.json")["tiles"]}
    assert listed == {path.name for path in tmp_path.glob("tile_*.ply")}
