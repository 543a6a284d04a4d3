"""Fusion cut in two is fusion in one piece, bit by bit, in whichever order candidates are made."""

from __future__ import annotations

import pickle
import random
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from ball_scene import SceneMaker
from test_consistency_triton import Noisy

from gbinet.fusion import comparing
from gbinet.fusion import consistency_triton as kernels
from gbinet.fusion.candidates import CandidateMaker, PointChooser
from gbinet.fusion.comparing import Comparer
from gbinet.fusion.fuse import FusedView, FusionConfig, fuse_views
from gbinet.fusion.sources import DepthSource
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene


def in_two_steps(scene: Scene, depths: DepthSource, config: FusionConfig, device: str) -> list[FusedView]:
    """Candidates in a random order by two makers; then the choice, in the order of the walk."""
    made = {}
    views = list(range(len(scene.views)))
    random.Random(3).shuffle(views)
    for share in (views[::2], views[1::2]):
        with Comparer(scene, depths, config, device) as comparer:
            maker = CandidateMaker(comparer)
            for position, index in enumerate(share):
                found = maker.make(index, share[position + 1 : position + 2], pictures=index == 0)
                made[index] = pickle.loads(pickle.dumps(found))
            order = comparer.order
    chooser, chosen = PointChooser(config), []
    for index in order:
        if made[index] is None:
            chooser.skip(index)
        else:
            chosen.append(chooser.choose(made[index]))
    return chosen


def assert_same(one: list[FusedView], other: list[FusedView]) -> None:
    assert [v.index for v in one] == [v.index for v in other]
    for a, b in zip(one, other, strict=True):
        assert (a.known, a.confident, a.asked, a.needed) == (b.known, b.confident, b.asked, b.needed)
        assert torch.equal(a.confirmed.depth, b.confirmed.depth)
        for column in fields(PointCloud):
            assert torch.equal(getattr(a.cloud, column.name), getattr(b.cloud, column.name)), column.name
        if b.depth_map is not None:
            assert a.depth_map is not None and torch.equal(a.depth_map.depth, b.depth_map.depth)
            assert a.photo is not None and b.photo is not None and torch.equal(a.photo, b.photo)


OPTIONS = [
    {},
    {"dynamic": True, "min_views": 2},
    {"duplicates": "voxel"},
    {"duplicates": "none", "box": (-1.0, -1.0, -1.0, 1.0, 0.5, 1.0)},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_two_steps_are_one(options: dict[str, object], ball_scene: SceneMaker) -> None:
    scene = ball_scene(views=7, width=72, height=56)
    config = FusionConfig(min_confidence=0.05, blank_confidence=0.05, cached_maps=3, **options)  # type: ignore[arg-type]
    whole = list(fuse_views(scene, Noisy(scene), config))
    assert sum(len(view.cloud) for view in whole) > 200
    assert_same(whole, in_two_steps(scene, Noisy(scene), config, "cpu"))


class WithoutSome(Noisy):
    def load(self, index: int):  # type: ignore[no-untyped-def]
        return None if index in (0, 3) else super().load(index)


def test_views_without_a_map_and_photos_that_cannot_be_read(ball_scene: SceneMaker) -> None:
    scene = ball_scene(views=5)
    Path(scene.views[1].image_path).write_bytes(b"no photo")
    config = FusionConfig(min_confidence=0.05, blank_confidence=0.05, min_views=1)
    whole = list(fuse_views(scene, WithoutSome(scene), config))
    assert len(whole) == 3
    assert_same(whole, in_two_steps(scene, WithoutSome(scene), config, "cpu"))


def test_kernels_give_the_same_in_two_steps(
    ball_scene: SceneMaker, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene(views=4, width=56, height=44)
    monkeypatch.setattr(comparing.ops, "usable", lambda *_: True)
    if kernel_device.type == "cpu":
        monkeypatch.setattr(kernels, "_TILE", 1 << 14)
        monkeypatch.setattr(kernels, "_BLOCK", 1 << 10)
    config = FusionConfig(min_confidence=0.05, blank_confidence=0.05)
    whole = list(fuse_views(scene, Noisy(scene), config, kernel_device))
    assert sum(len(view.cloud) for view in whole) > 200
    assert_same(whole, in_two_steps(scene, Noisy(scene), config, str(kernel_device)))
