"""Samples by number: the same whether scenes are built ahead or in time."""

from __future__ import annotations

import torch

from gbinet.data.batch import Batch
from gbinet.render.source import RenderConfig, RenderedSource

CONFIG = RenderConfig(
    48, 40, 2, seed=3, kinds=("table",), samples_per_scene=2, scenes_at_once=2, zoom=1.5
)  # fmt: skip


def same(a: Batch, b: Batch) -> bool:
    return a.names == b.names and all(map(torch.equal, a.tensors(), b.tensors()))


def test_scenes_built_ahead_are_those_built_in_time() -> None:
    in_time, ahead = RenderedSource(CONFIG), RenderedSource(CONFIG)
    ahead.make_ahead = True
    built: list[int] = []
    make = ahead.scene
    ahead.scene = lambda number: built.append(number) or make(number)  # type: ignore[assignment,func-returns-value]
    for index in (0, 1, 2, 3, 1):  # back again too
        assert same(ahead.batch(index, 2), in_time.batch(index, 2)), index
    forwards = [ahead.scene_number(i)[1] for i in range(8)]
    assert set(built) >= set(forwards)
    assert len(built) <= len(set(forwards)) + 2 * 2  # none twice but for the way back


def test_a_scene_that_cannot_be_built_is_reported_when_it_is_needed() -> None:
    source = RenderedSource(CONFIG)
    source.make_ahead = True
    source.batch(0, 2)

    def fail(number: int) -> None:
        raise MemoryError(f"scene {number}")

    source.scene = fail  # type: ignore[assignment,method-assign]
    for index in range(1, 4):
        try:
            source.batch(index, 2)
        except MemoryError as error:
            assert "scene" in str(error)
            return
    raise AssertionError("new scenes were needed and none was built")
