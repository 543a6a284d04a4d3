"""The order in which fusion visits views, and how often their maps are read."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.fusion.comparing import Comparer
from gbinet.fusion.fuse import FusionConfig
from gbinet.scene import Scene, SourceView, View

CAMERA = Camera(torch.tensor([[8.0, 0, 2], [0, 8, 2], [0, 0, 1]]), torch.eye(4), 4, 4)


class Counted:
    """Maps from memory; some views have none."""

    def __init__(self, without: set[int]) -> None:
        self.loads, self.without = 0, without

    def load(self, index: int) -> DepthMap | None:
        self.loads += 1
        return None if index in self.without else DepthMap(torch.ones(4, 4), CAMERA)


@st.composite
def neighbourhoods(draw: st.DrawFn) -> list[list[int]]:
    """Up to four other views for each of up to twenty."""
    count = draw(st.integers(2, 20))
    others = st.lists(st.integers(0, count - 1), max_size=4, unique=True)
    return [[other for other in draw(others) if other != view] for view in range(count)]


def scene_of(neighbours: list[list[int]]) -> Scene:
    views = [
        View(str(index), CAMERA, Path("none.png"), sources=tuple(SourceView(i, 1.0) for i in sources))
        for index, sources in enumerate(neighbours)
    ]
    return Scene("a scene", "mvsnet", Path(), tuple(views))


def fewest_reads(uses: list[int], held_at_once: int) -> int:
    """Of whoever knows all uses: what is needed last goes first (Belady)."""
    held, reads = set[int](), 0
    for position, used in enumerate(uses):
        reads += used not in held
        held.add(used)
        if len(held) > held_at_once:
            later = uses[position + 1 :]
            held.remove(max(held, key=lambda one: later.index(one) if one in later else len(uses)))
    return reads


@settings(max_examples=50, deadline=None)
@given(neighbourhoods(), st.integers(1, 12))
def test_maps_that_are_needed_soonest_are_held(neighbours: list[list[int]], held_at_once: int) -> None:
    """Each view comes once, and nobody could read less."""
    depths = Counted(set())
    config = FusionConfig(cached_maps=held_at_once)
    visited = []
    with Comparer(scene_of(neighbours), depths, config, "cpu") as comparer:
        for view, following in comparer.in_order():
            visited.append(view)
            assert comparer.compare(view, None, ()) is not None
            assert following == comparer.order[len(visited) : len(visited) + 2]
        order = comparer.order
    assert sorted(visited) == list(range(len(neighbours))) and visited == order
    uses = [used for view in order for used in (view, *neighbours[view])]
    assert depths.loads == fewest_reads(uses, held_at_once)


@settings(max_examples=25, deadline=None)
@given(neighbourhoods(), st.sets(st.integers(0, 19)))
def test_nothing_is_held_at_the_end(neighbours: list[list[int]], without: set[int]) -> None:
    """Also where views have no depth map, and so their neighbours are not asked for."""
    depths = Counted(without)
    with Comparer(scene_of(neighbours), depths, FusionConfig(), "cpu") as comparer:
        for view, following in comparer.in_order():
            assert (comparer.compare(view, None, following) is None) == (view in without)
        assert not comparer._loader._held
