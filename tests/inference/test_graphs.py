"""Graphs give what computing gives, are bounded in number, and do without where recording fails.

A stand-in replays by computing again: the same protocol without a GPU. (tests/kernels has the real thing.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from gbinet.inference.graphs import Graphs


class Computation:
    """Doubles its input; remembers what it read from and wrote to, as a recorded one does."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor]] = []
        self.pools: list[object] = []  # whose memory each recording was told to use

    def __call__(self, values: Tensor) -> tuple[Tensor, ...]:
        self.calls.append((values, 2 * values.float()))
        return (self.calls[-1][1],)


@pytest.fixture
def computation(monkeypatch: pytest.MonkeyPatch) -> Computation:
    made = Computation()

    class StandIn:
        def pool(self) -> object:
            return "pool"

        def replay(self) -> None:
            source, target = self.recorded
            with torch.inference_mode():  # a real one writes past torch
                target.copy_(2 * source.float())

    @contextmanager
    def recording(graph: StandIn, pool: object = None) -> Iterator[None]:
        made.pools.append(pool)
        yield
        graph.recorded = made.calls[-1]  # type: ignore[attr-defined]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    return made


def test_every_call_gives_its_own_result(computation: Computation) -> None:
    graphs = Graphs(limit=1)
    results = [graphs("key", computation, [torch.full((3,), float(i))], [torch.float16])[0] for i in range(5)]
    assert [r.tolist() for r in results] == [[2.0 * i] * 3 for i in range(5)]  # none is overwritten later
    assert len(computation.calls) == 2 and len(graphs) == 1  # computed once, recorded once
    assert computation.calls[1][0].dtype == torch.float16  # held in the type that was asked for


def test_what_was_recorded_in_inference_mode_replays_outside_it(computation: Computation) -> None:
    graphs = Graphs(limit=1)
    with torch.inference_mode():
        for i in range(2):
            graphs("key", computation, [torch.tensor([float(i)])], [torch.float32])
    assert len(graphs) == 1
    (result,) = graphs("key", computation, [torch.tensor([5.0])], [torch.float32])
    assert result == 10 and not result.is_inference()


def test_no_more_graphs_than_allowed(computation: Computation) -> None:
    graphs = Graphs(limit=1)
    for round_ in range(3):
        for key in ("a", "b"):
            value = torch.tensor([float(round_)])
            assert graphs(key, computation, [value], [torch.float32])[0] == 2 * round_
    assert len(graphs) == 1


def test_graphs_share_memory_and_inputs_of_one_shape(computation: Computation) -> None:
    graphs = Graphs(limit=3)
    values = {"a": torch.ones(2), "b": 3 * torch.ones(2), "other shape": 5 * torch.ones(4)}
    for _ in range(3):
        for key, value in values.items():
            (result,) = graphs(key, computation, [value], [torch.float32])
            assert torch.equal(result, 2 * value)
    assert len(graphs) == 3 and computation.pools == [None, "pool", "pool"]
    a, b, other = (source for source, _ in computation.calls[3:])
    assert a is b and other.shape == (4,)


def test_where_recording_fails_it_is_computed(
    computation: Computation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def failing(graph: object, pool: object = None) -> Iterator[None]:
        yield
        raise RuntimeError("CUDA out of memory")

    graphs = Graphs(limit=2)
    for i in range(2):
        graphs("recorded", computation, [torch.tensor([float(i)])], [torch.float32])
    assert len(graphs) == 1
    monkeypatch.setattr(torch.cuda, "graph", failing)
    for i in range(3):
        assert graphs("key", computation, [torch.tensor([float(i)])], [torch.float32])[0] == 2 * i
    assert len(graphs) == 0 and not graphs._held and "out of memory" in caplog.text  # memory is given back
    assert graphs("recorded", computation, [torch.tensor([7.0])], [torch.float32])[0] == 14


def test_no_graphs_when_none_are_allowed(computation: Computation) -> None:
    graphs = Graphs(limit=0)
    for _ in range(3):
        graphs("key", computation, [torch.ones(1)], [torch.float32])
    assert len(computation.calls) == 3
