"""Recorded steps give what eager ones give; where nothing can be recorded, steps run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from plane_scenes import PlaneSource
from torch import Tensor

from gbinet.model.gbinet import GBiNet
from gbinet.training import graph
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import Processes
from gbinet.training.graph import EAGER_STEPS, StepRunner
from gbinet.training.optimise import Optimiser, to_channels_last
from gbinet.training.updates import Step

Work = Callable[[], Tensor]


def runner(config: TrainConfig, record: Callable[[Work], Work], device: str = "cpu") -> StepRunner:
    torch.manual_seed(0)
    model = GBiNet(config.network).to(device).train()
    to_channels_last(model)
    return StepRunner(model, Optimiser(model, config, Processes()), record)


def train(
    steps: StepRunner, config: TrainConfig, source: PlaneSource, count: int, device: str = "cpu"
) -> list[Tensor]:
    """Measures of every step, on batches that all differ."""
    measures = []
    for number in range(count):
        steps.optimiser.schedule(1e-4 * (number + 1), number)
        measures.append(
            steps(source.batch(number, 2).to(device), Step(config, config.network.stages)).cpu().clone()
        )
    return measures


class Recorder:
    """Stands in for the GPU's: the work is done at every replay and not when it is recorded."""

    def __init__(self) -> None:
        self.records = self.replays = 0

    def __call__(self, work: Work) -> Work:
        self.records += 1

        def replay() -> Tensor:
            self.replays += 1
            return work()

        return replay


def refuse(work: Work) -> Work:
    work_tensor = torch.zeros(())
    raise RuntimeError(f"cannot record {work_tensor.dim()}")


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "recordable", lambda step, batch: True)


@pytest.mark.usefixtures("anywhere")
def test_replayed_steps_see_every_batch_and_rate(planes: PlaneSource, tiny: TrainConfig):
    recorder = Recorder()
    recorded, eager = runner(tiny, recorder), runner(tiny, refuse)
    a = train(recorded, tiny, planes, EAGER_STEPS + 2)
    eager.failure = "never try"
    b = train(eager, tiny, planes, EAGER_STEPS + 2)
    assert (recorder.records, recorder.replays) == (1, 2)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    for x, y in zip(recorded.model.state_dict().values(), eager.model.state_dict().values(), strict=True):
        assert torch.equal(x, y)
    assert recorded.optimiser.averaged is not None and eager.optimiser.averaged is not None
    averages = (m.averaged.parameters() for m in (recorded.optimiser, eager.optimiser) if m.averaged)
    assert all(torch.equal(x, y) for x, y in zip(*averages, strict=True))
    assert recorded.optimiser.check() == eager.optimiser.check()


@pytest.mark.usefixtures("anywhere")
def test_another_shape_runs_eagerly_and_replaces_the_recording(tiny: TrainConfig):
    recorder = Recorder()
    steps = runner(tiny.with_network(stages=1), recorder)
    small, large = PlaneSource(64, 64), PlaneSource(64, 128)
    train(steps, tiny.with_network(stages=1), small, EAGER_STEPS + 1)
    assert steps.recorded and recorder.records == 1
    train(steps, tiny.with_network(stages=1), large, 1)
    assert not steps.recorded
    train(steps, tiny.with_network(stages=1), large, EAGER_STEPS)
    assert steps.recorded and recorder.records == 2
    train(steps, tiny.with_network(stages=2), large, 1)  # more stages are another recording too
    assert not steps.recorded and recorder.records == 2


@pytest.mark.usefixtures("anywhere")
def test_released_recording_is_made_again(planes: PlaneSource, tiny: TrainConfig):
    recorder = Recorder()
    steps = runner(tiny.with_network(stages=1), recorder)
    train(steps, tiny.with_network(stages=1), planes, EAGER_STEPS + 1)
    steps.release()
    train(steps, tiny.with_network(stages=1), planes, 1)
    assert (recorder.records, recorder.replays) == (2, 2)


@pytest.mark.usefixtures("anywhere")
def test_what_cannot_be_recorded_runs_eagerly_and_says_why(planes: PlaneSource, tiny: TrainConfig):
    steps = runner(tiny.with_network(stages=1), refuse)
    train(steps, tiny.with_network(stages=1), planes, EAGER_STEPS + 2)
    assert steps.failure == "cannot record 0"
    assert float(steps.optimiser.applied) == EAGER_STEPS + 2


def test_nothing_is_recorded_on_a_cpu(planes: PlaneSource, tiny: TrainConfig):
    recorder = Recorder()
    steps = runner(tiny.with_network(stages=1), recorder)
    train(steps, tiny.with_network(stages=1), planes, EAGER_STEPS + 1)
    assert recorder.records == 0 and not steps.failure


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["per-stage", "shared-encoder"])
def test_recorded_steps_train_like_eager_ones(mode: str, planes: PlaneSource, tiny: TrainConfig):
    """Step by step from the same state: additions on a GPU come in any order, and runs drift apart."""
    config = replace(tiny, update=mode, readout_weight=0.1)  # type: ignore[arg-type]
    recorded = runner(config, graph.record, "cuda")
    eager = runner(config, graph.record, "cuda")
    eager.failure = "never try"
    train(recorded, config, planes, EAGER_STEPS, "cuda")
    train(eager, config, planes, EAGER_STEPS, "cuda")
    for number in range(EAGER_STEPS, EAGER_STEPS + 4):
        with torch.no_grad():
            for x, y in zip(state(eager), state(recorded), strict=True):
                x.copy_(y)
        before = torch.cat([p.detach().flatten() for p in eager.model.parameters()])
        moves, measures = [], []
        for steps in (recorded, eager):
            steps.optimiser.schedule(1e-4 * (number + 1), number)
            batch = planes.batch(number, 2).to("cuda")
            measures.append(steps(batch, Step(config, config.network.stages)).clone())
            after = torch.cat([p.detach().flatten() for p in steps.model.parameters()])
            moves.append(after - before)
        assert recorded.recorded and not recorded.failure and not eager.recorded
        if mode == "shared-encoder":  # weights change after the last stage only
            torch.testing.assert_close(measures[0], measures[1], rtol=1e-3, atol=1.0)
        gap = float((moves[0] - moves[1]).norm() / moves[1].norm())
        assert gap < (0.05 if mode == "shared-encoder" else 0.3), (number, gap)
        assert float(moves[1].norm()) > 0
    assert recorded.optimiser.check()["skipped"] == 0


def state(steps: StepRunner) -> list[Tensor]:
    """Everything that a step changes and the next one reads."""
    moments = [t for s in steps.optimiser.adam.state.values() for t in s.values()]
    assert steps.optimiser.averaged is not None
    return [*steps.model.state_dict().values(), *steps.optimiser.averaged.state_dict().values(), *moments]
