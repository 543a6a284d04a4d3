"""Samples by number: the same whether scenes are built ahead or in time."""

from __future__ import annotations

import threading

import pytest
import torch

from gbinet.render.scenery import RenderScene
from gbinet.render.source import RenderConfig, RenderedSource
from gbinet.scenes.batch import Batch

CONFIG = RenderConfig(48, 40, 2, seed=3, kinds=("table",), samples_per_scene=2, scenes_at_once=2, zoom=1.5)


def same(a: Batch, b: Batch) -> bool:
    return a.names == b.names and all(map(torch.equal, a.tensors(), b.tensors()))


def watch(source: RenderedSource) -> list[tuple[int, int]]:
    """Number and thread of every scene that the source builds from now on."""
    built: list[tuple[int, int]] = []
    make = source.scene

    def noting(number: int) -> RenderScene:
        built.append((number, threading.get_ident()))
        return make(number)

    source.scene = noting  # type: ignore[method-assign]
    return built


def test_scenes_built_ahead_are_those_built_in_time() -> None:
    in_time, ahead = RenderedSource(CONFIG), RenderedSource(CONFIG)
    ahead.make_ahead = True
    built = watch(ahead)
    for index in range(4):
        assert same(ahead.batch(index, 2), in_time.batch(index, 2)), index
    here = threading.get_ident()
    first = {ahead.scene_number(i)[1] for i in range(4)}  # with the first batch nothing is built ahead
    assert {number for number, thread in built if thread == here} == first  # all others in the second thread
    assert sorted(n for n, _ in built) == sorted({ahead.scene_number(i)[1] for i in range(10)})  # none twice
    assert same(ahead.batch(1, 2), in_time.batch(1, 2))  # back again


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_processes_that_take_turns_build_no_unused_scene(rank: int) -> None:
    source = RenderedSource(CONFIG, stride=2)
    source.make_ahead = True
    built = watch(source)
    for index in range(rank, 8, 2):
        source.batch(index, 2)
    needed = {source.scene_number(i)[1] for index in range(rank, 10, 2) for i in (2 * index, 2 * index + 1)}
    assert sorted(n for n, _ in built) == sorted(needed)


def test_a_scene_that_cannot_be_built_is_reported_when_it_is_needed() -> None:
    source = RenderedSource(CONFIG)
    source.make_ahead = True
    source.batch(0, 2)

    def fail(number: int) -> None:
        raise MemoryError(f"scene {number}")

    source.scene = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(MemoryError, match="scene"):
        for index in range(1, 4):  # new scenes are needed in one of them
            source.batch(index, 2)
