"""What was just computed is fused without being read back, up to a number of bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch
from ball_scene import SceneMaker
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fuse import TrueDepth

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.fusion.loading import Loader
from gbinet.fusion.sources import RecentMaps


def flat(depth: float) -> DepthMap:
    camera = Camera(torch.tensor([[8.0, 0, 4], [0, 8, 3], [0, 0, 1]]), torch.eye(4), 8, 6)
    return DepthMap(torch.full((6, 8), depth), camera, torch.ones(6, 8))


class Files:
    def load(self, index: int) -> DepthMap:
        return flat(100.0 + index)


@given(st.integers(0, 3000), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=12))
@settings(max_examples=40)
def test_never_more_than_allowed_and_files_for_the_rest(room: int, kept: list[tuple[bool, int]]) -> None:
    recent = RecentMaps(Files(), room)
    for is_map, index in kept:
        if is_map:
            recent.keep_map(index, flat(1.0 + index))
        else:
            recent.keep_photo(index, torch.zeros(6, 8, 3, dtype=torch.uint8))
    assert recent.held_bytes <= room
    for index in range(6):
        found = recent.load(index)
        assert found is not None and float(found.depth[0, 0]) in (1.0 + index, 100.0 + index)
    recent.clear()
    recent.keep_map(0, flat(1.0))
    loaded = recent.load(0)
    assert recent.held_bytes == 0 and loaded is not None and float(loaded.depth[0, 0]) == 100.0
    assert all(recent.photo(index) is None for index in range(6))


def test_kept_maps_and_photos_make_the_same_cloud_without_reading(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene()
    files = TrueDepth(scene, 0.7)
    fuse(scene, files, tmp_path / "files.ply")
    read = files.loads
    recent = RecentMaps(files, 1 << 30)
    with Loader(scene, files, FusionConfig(), torch.device("cpu")) as loader:
        for index in range(len(scene.views)):
            loaded = loader.get(index)
            assert loaded is not None and loaded.photo is not None
            recent.keep_map(index, loaded.whole)
            recent.keep_photo(index, loaded.photo)
    for view in scene.views:
        view.image_path.unlink()
    fuse(scene, recent, tmp_path / "kept.ply")
    assert files.loads == read + len(scene.views)  # those above alone
    assert (tmp_path / "kept.ply").read_bytes() == (tmp_path / "files.ply").read_bytes()


def test_what_was_kept_and_dropped_is_awaited_until_it_is_in_its_file() -> None:
    recent = RecentMaps(Files(), 1 << 30)
    recent.await_maps()
    recent.keep_map(0, flat(1.0))
    kept = recent.load(0)
    assert kept is not None and float(kept.depth[0, 0]) == 1.0
    recent.clear()  # memory ran out while the file was being written
    with ThreadPoolExecutor(1) as other:
        loading = other.submit(recent.load, 0)
        assert not wait([loading], timeout=0.1).done
        recent.settled(0)
        loaded = loading.result(timeout=60)
    assert loaded is not None and float(loaded.depth[0, 0]) == 100.0
