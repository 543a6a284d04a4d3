"""Graphs give what computing gives, are bounded in number, and do without where recording fails.

A stand-in replays by computing again: the same protocol without a GPU. (test_prepare_triton.py has the real
thing.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from gbinet import ops
from gbinet.inference.graphs import GraphedNetwork, Graphs, tensors_in, with_tensors
from gbinet.inference.prepare import prepare
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet


@dataclass(frozen=True)
class Answer:
    values: Tensor
    name: str


class Recorder:
    """Remembers what a function read from and wrote to, as a recorded one does."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor]] = []
        self.pools: list[object] = []  # whose memory each recording was told to use

    def double(self, values: Tensor, name: str = "") -> Answer:
        self.calls.append((values, 2 * values.float()))
        return Answer(self.calls[-1][1], name)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()

    class StandIn:
        def pool(self) -> object:
            return "pool"

        def replay(self) -> None:
            source, target = self.recorded
            with torch.inference_mode():  # a real one writes past torch
                target.copy_(2 * source.float())

    @contextmanager
    def recording(graph: StandIn, pool: object = None, **_: str) -> Iterator[None]:
        made.pools.append(pool)
        yield
        graph.recorded = made.calls[-1]  # type: ignore[attr-defined]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    return made


def test_every_call_gives_its_own_result(recorder: Recorder) -> None:
    graphs = Graphs(1, torch.float16)
    results = [graphs(recorder.double, torch.full((3,), float(i)), name="x") for i in range(5)]
    assert [r.values.tolist() for r in results] == [[2.0 * i] * 3 for i in range(5)]  # none is overwritten
    assert {r.name for r in results} == {"x"}
    assert len(recorder.calls) == 2 and len(graphs) == 1  # computed once, recorded once
    assert recorder.calls[1][0].dtype == torch.float16  # held in the type that was asked for


def test_what_was_recorded_in_inference_mode_replays_outside_it(recorder: Recorder) -> None:
    graphs = Graphs(1)
    with torch.inference_mode():
        for i in range(2):
            graphs(recorder.double, torch.tensor([float(i)]))
    assert len(graphs) == 1
    result = graphs(recorder.double, torch.tensor([5.0])).values
    assert result == 10 and not result.is_inference()


def test_no_more_graphs_than_allowed(recorder: Recorder) -> None:
    graphs = Graphs(1)
    for round_ in range(3):
        for name in ("a", "b"):  # another option is another call
            answer = graphs(recorder.double, torch.tensor([float(round_)]), name=name)
            assert answer.values == 2 * round_ and answer.name == name
    assert len(graphs) == 1


def test_graphs_share_memory_and_inputs_of_one_shape(recorder: Recorder) -> None:
    graphs = Graphs(3)
    values = {"a": torch.ones(2), "b": 3 * torch.ones(2), "other shape": 5 * torch.ones(4)}
    for _ in range(3):
        for name, value in values.items():
            assert torch.equal(graphs(recorder.double, value, name=name).values, 2 * value)
    assert len(graphs) == 3 and recorder.pools == [None, "pool", "pool"]
    a, b, other = (source for source, _ in recorder.calls[3:])
    assert a is b and other.shape == (4,)


def test_calls_are_computed_where_recording_fails(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def failing(graph: object, pool: object = None, **_: str) -> Iterator[None]:
        yield
        raise RuntimeError("CUDA out of memory")

    graphs = Graphs(2)
    for i in range(2):
        graphs(recorder.double, torch.tensor([float(i)]), name="recorded")
    assert len(graphs) == 1
    monkeypatch.setattr(torch.cuda, "graph", failing)
    for i in range(3):
        assert graphs(recorder.double, torch.tensor([float(i)]), name="new").values == 2 * i
    assert len(graphs) == 0 and not graphs._buffers and "out of memory" in caplog.text  # memory is given back
    assert graphs(recorder.double, torch.tensor([7.0]), name="recorded").values == 14


def test_no_graphs_when_none_are_allowed(recorder: Recorder) -> None:
    graphs = Graphs(0)
    for _ in range(3):
        graphs(recorder.double, torch.ones(1))
    assert len(recorder.calls) == 3


def test_tensors_in_arguments_of_all_kinds_are_found_and_replaced() -> None:
    given = ([torch.zeros(1), (torch.zeros(2), "word")], Answer(torch.zeros(3), "name"), None)
    assert [len(t) for t in tensors_in(given)] == [1, 2, 3]
    filled = with_tensors(given, (torch.ones_like(t) for t in tensors_in(given)))
    assert all(bool(t.all()) for t in tensors_in(filled)) and filled[0][1][1] == "word"
    assert isinstance(filled[1], Answer) and filled[1].name == "name" and filled[2] is None


def test_a_graphed_network_uses_graphs_only_where_possible(
    make_tiny_scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_tiny_scene()
    config = GBiNetConfig(encoder_width=4, regulariser_width=2, stages=2, first_spacing=1.0)
    network = prepare(GBiNet(config), "cpu")
    graphed = GraphedNetwork(network, 3)
    asked: list[tuple[str, object]] = []

    class Asked(Graphs):
        def __call__(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            asked.append((function.__qualname__, options.get("first_bins")))
            return function(*args, **options)

    monkeypatch.setattr(graphed, "graphs", Asked(3))
    monkeypatch.setattr(ops, "recordable", lambda *tensors: True)
    limits = torch.tensor([[scene.depth_range.near, scene.depth_range.far]])
    inputs = (scene.images[None], scene.cameras[None], limits)
    with torch.inference_mode():
        found, expected = graphed(*inputs), network(*inputs)
        assert torch.equal(found.depth, expected.depth)
        features = graphed.encode(inputs[0])
        begun = graphed.search(features, *inputs[1:], stages=1)
        graphed.search(features, *inputs[1:], resume=begun)
        graphed(*inputs, keep_stages=True)
        monkeypatch.setattr(ops, "recordable", lambda *tensors: False)
        graphed(*inputs)
    assert [name for name, _ in asked] == ["GBiNet.forward", "GBiNet.encode", "GBiNet.search"]
    assert all(isinstance(bins, int) for _, bins in asked[::2])  # found before, as a recording cannot look
