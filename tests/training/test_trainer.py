"""The loop: stopping and going on, bad batches, learning."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from plane_scenes import PlaneSource

from gbinet.cli.train import Start, _run
from gbinet.errors import FormatError, GBiNetError, InputError, WeightsError
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig, preset
from gbinet.training.distributed import Processes
from gbinet.training.samples import SourceStream, Stream
from gbinet.training.trainer import Trainer, TrainStatus, initial_weights, train


def stream_of(source: PlaneSource, batch_size: int = 2) -> Stream:
    return SourceStream(source, batch_size, Processes())


def weights(path: Path) -> dict[str, torch.Tensor]:
    return GBiNet.from_pretrained(path).state_dict()


def log(out: Path, kind: str) -> list[dict[str, object]]:
    lines = [json.loads(text) for text in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


@pytest.mark.parametrize("mode", ["per-stage", "shared-encoder", "refiner"])
def test_a_stopped_and_resumed_run_equals_an_unbroken_one(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path, mode: str
):
    config = replace(tiny, readout_weight=0.1, warmup_steps=3)
    if mode == "refiner":
        smooth = tiny.with_network(stages=7, smoothing=((1, 6), (1, 6), (1, 6), (2, 24)))
        init = initial_weights(smooth).save(tmp_path / "network.safetensors")
        config = replace(smooth.with_network(refiner=True, readout="refined"), init=init)
    config = replace(config, update=mode)  # type: ignore[arg-type]
    validation = [planes.batch(500, 1)]
    train(config, tmp_path / "a", stream=stream_of(planes), validation=validation)

    def interrupt(report: TrainStatus) -> None:
        if report.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "b"
    first = train(config, out, stream=stream_of(planes), validation=validation, report=interrupt)
    assert first.progress.step == 2
    assert not first.finished
    torch.rand(7)  # something else used the random numbers meanwhile
    second = train(config, out, resume=True, stream=stream_of(planes), validation=validation)
    assert second.finished
    assert second.progress.samples == 8
    for name in ("last.safetensors", "state-00000004/weights.safetensors"):
        a, b = weights(tmp_path / "a" / name), weights(out / name)
        assert all(torch.equal(a[k], b[k]) for k in a), name


class BrokenStream:
    """Planes whose images are not finite in some steps."""

    steps_per_epoch = 0

    def __init__(self, source: PlaneSource, bad: set[int]) -> None:
        self.source, self.bad = source, bad

    def batches(self, first_step: int) -> Iterator[Batch]:
        step = first_step
        while True:
            batch = self.source.batch(step, 2)
            if step in self.bad:
                batch = replace(batch, images=torch.full_like(batch.images, torch.nan))
            yield batch
            step += 1


@pytest.mark.parametrize("mode", ["per-stage", "accumulate", "shared-encoder"])
def test_a_bad_batch_is_skipped_and_counted(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path, mode: str
):
    config = replace(tiny, update=mode, ema=0.0, learning_rate=1e-3)  # type: ignore[arg-type]
    result = train(config, tmp_path, stream=BrokenStream(planes, {1, 3}), validation=[])
    assert result.progress.skipped == 2
    assert log(tmp_path, "train")[-1]["skipped"] == 2
    assert all(bool(torch.isfinite(v).all()) for v in weights(tmp_path / "last.safetensors").values())


def test_three_bad_batches_in_a_row_stop_the_run(planes: PlaneSource, tiny: TrainConfig, tmp_path: Path):
    config = replace(tiny, total_steps=8, log_every=4)
    with pytest.raises(GBiNetError, match="3 batches in a row"):
        train(config, tmp_path, stream=BrokenStream(planes, {1, 2, 3}), validation=[])


def test_the_loss_halves_in_a_minute(tiny: TrainConfig, tmp_path: Path):
    """Stage 1 and 2 on a few planes, on one core: quick enough for every run of the tests."""
    config = replace(tiny, total_steps=60, learning_rate=4e-3, log_every=10, ema=0.9, clip=10.0)
    config = config.with_network(stages=2)
    source = PlaneSource(scenes=2)
    train(config, tmp_path, stream=stream_of(source), validation=[source.batch(0, 1)])
    losses = [line["loss"] for line in log(tmp_path, "train")]
    assert losses[-1] < losses[0] / 2, losses  # type: ignore[operator]
    scores = [line["valid_share"] for line in log(tmp_path, "validation")]
    assert scores[-1]["2"] > 0.8  # type: ignore[index]


def test_a_run_is_not_overwritten_and_keeps_its_options(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path
):
    config = replace(tiny, total_steps=1)
    train(config, tmp_path, stream=stream_of(planes), validation=[])
    with pytest.raises(InputError, match="--resume"):
        train(config, tmp_path, stream=stream_of(planes), validation=[])
    with pytest.raises(InputError, match="--learning-rate"):
        other = replace(config, learning_rate=0.5)
        train(other, tmp_path, resume=True, stream=stream_of(planes), validation=[])
    with pytest.raises(InputError, match=r"--bins \(was 4, now 6\)"):
        other = config.with_network(bins=6)
        train(other, tmp_path, resume=True, stream=stream_of(planes), validation=[])
    with pytest.raises(InputError, match="no checkpoint"):
        train(config, tmp_path / "empty", resume=True, stream=stream_of(planes), validation=[])


def test_a_checkpoint_from_before_an_option_existed_is_resumed(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path
):
    config = replace(tiny, total_steps=2)
    train(replace(config, total_steps=1), tmp_path, stream=stream_of(planes), validation=[])
    path = tmp_path / "state-00000001" / "state.json"
    record = json.loads(path.read_text())
    del record["config"]["life"], record["config"]["network"]["choice_again"]
    path.write_text(json.dumps(record))
    config = replace(config, total_steps=1)
    assert train(config, tmp_path, resume=True, stream=stream_of(planes), validation=[]).finished


def test_a_checkpoint_of_another_version_says_what_to_do(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path
):
    config = replace(tiny, total_steps=1)
    train(config, tmp_path, stream=stream_of(planes), validation=[])
    record = tmp_path / "state-00000001" / "state.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "format": 1}))
    with pytest.raises(FormatError, match="--init"):
        train(config, tmp_path, resume=True, stream=stream_of(planes), validation=[])


def test_a_run_without_a_length_takes_an_hour():
    assert TrainConfig().with_length().total_minutes == 60
    assert preset("rendered", minutes=5).with_length().total_minutes == 0


def test_minutes_stop_the_run_in_time(planes: PlaneSource, tiny: TrainConfig, tmp_path: Path):
    config = replace(tiny, total_steps=100_000, minutes=0.05)  # 3 seconds
    result = train(config, tmp_path, stream=stream_of(planes), validation=[])
    assert not result.finished
    assert 0 < result.progress.seconds < 6
    assert (tmp_path / "last.safetensors").is_file()


def test_on_a_cpu_the_first_step_comes_before_the_first_validation(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where time is limited; and scenes are no larger than what is trained on."""
    asked: list[tuple[int, int]] = []

    def batches(config: TrainConfig, device: torch.device, rendered_size: tuple[int, int]) -> list[Batch]:
        asked.append(rendered_size)
        return [planes.batch(0, 1)]

    monkeypatch.setattr("gbinet.training.trainer.validation_batches", batches)
    monkeypatch.setattr("gbinet.training.distributed.torch.cuda.is_available", lambda: False)
    train(replace(tiny, total_steps=1, minutes=5), tmp_path, stream=stream_of(planes))
    assert [line["step"] for line in log(tmp_path, "validation")] == [1]
    assert asked == [(tiny.width, tiny.height)]


def test_a_command_without_time_for_a_step_is_not_a_run(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short = replace(tiny, total_steps=0, minutes=1e-9)
    reports: list[TrainStatus] = []
    result = train(short, tmp_path, stream=stream_of(planes), validation=[], report=reports.append)
    assert not result.finished and result.progress.step == 0
    train(replace(tiny, total_steps=1), tmp_path, stream=stream_of(planes), validation=[])  # starts anew
    monkeypatch.setattr("gbinet.cli.train.train", lambda *_, **__: result)
    with pytest.raises(InputError, match=r"before its first step.*--validation-scenes 0"):
        _run(Start(), short)


@pytest.mark.parametrize("minutes", [1e-6, 1.0])
def test_no_more_than_all_of_a_run_is_done(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path, minutes: float
):
    timed = replace(tiny, total_steps=0, total_minutes=minutes)
    trainer = Trainer(
        timed, tmp_path, Processes(), torch.device("cpu"), False, stream_of(planes), [], report=None
    )
    assert 0 < trainer.fraction() <= 1


def test_validations_and_checkpoints_come_when_they_are_due(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path
):
    config = replace(tiny, total_steps=3, validate_minutes=1e-9, checkpoint_minutes=1e-9)
    train(config, tmp_path, stream=stream_of(planes), validation=[planes.batch(0, 1)])
    assert [line["step"] for line in log(tmp_path, "validation")] == [0, 0, 1, 2, 3]
    assert [p.name for p in sorted(tmp_path.glob("state-*"))] == ["state-00000003"]  # older ones are gone
    assert not list(tmp_path.glob(".gbinet-tmp*"))


def test_best_weights_stay_when_later_ones_are_worse(planes: PlaneSource, tiny: TrainConfig, tmp_path: Path):
    """With a huge learning rate the start is the best."""
    config = replace(tiny, total_steps=2, learning_rate=0.5, ema=0.0)
    train(replace(config, total_steps=1, learning_rate=1e-9), tmp_path / "a", stream=stream_of(planes))
    start = tmp_path / "a" / "last.safetensors"
    samples = [planes.batch(0, 1)]
    result = train(replace(config, init=start), tmp_path / "b", stream=stream_of(planes), validation=samples)
    best = tmp_path / "b" / "best.safetensors"
    assert (result.progress.best_step == 0) == torch.equal(
        weights(best)["regularisers.0.logit.weight"], weights(start)["regularisers.0.logit.weight"]
    )
    assert result.progress.best == max(line["score"] for line in log(tmp_path / "b", "validation"))


def test_weights_of_another_configuration_with_the_same_tensors_start_a_run(
    planes: PlaneSource, tiny: TrainConfig, tmp_path: Path
):
    path = GBiNet("gbinet").save(tmp_path / "four.safetensors")
    config = replace(tiny, init=path, total_steps=1, learning_rate=1e-12, ema=0.0)
    config = config.with_network(first_bins=16)
    train(config, tmp_path / "run", stream=stream_of(planes), validation=[])
    trained = GBiNet.from_pretrained(tmp_path / "run" / "last.safetensors")
    assert trained.config.first_bins == 16
    a, b = weights(path), trained.state_dict()
    assert all(torch.allclose(a[k], b[k]) for k, _ in trained.named_parameters())


def test_weights_that_do_not_fit_are_refused(planes: PlaneSource, tiny: TrainConfig, tmp_path: Path):
    path = GBiNet(GBiNetConfig(regulariser_width=16)).save(tmp_path / "wide.safetensors")
    with pytest.raises(WeightsError, match=r"wide\.safetensors"):
        train(replace(tiny, init=path), tmp_path / "run", stream=stream_of(planes), validation=[])


class RepeatedStream:
    """A few batches over and over."""

    steps_per_epoch = 0

    def __init__(self, batches: list[Batch]) -> None:
        self.kept = batches

    def batches(self, first_step: int) -> Iterator[Batch]:
        return (self.kept[step % len(self.kept)] for step in count(first_step))


@pytest.mark.slow
def test_rendered_scenes_are_learned_in_a_minute(tmp_path: Path):
    """The preset for rendered scenes, shrunk, on a few batches: the loss is at least halved."""
    from gbinet.render.source import RenderConfig, RenderedSource

    source = RenderedSource(RenderConfig(width=64, height=64, views=3, dtu_like=True))
    stream = RepeatedStream([source.batch(index, 2) for index in range(4)])
    config = preset(
        "rendered",
        height=64,
        width=64,
        views=3,
        batch_size=2,
        network=GBiNetConfig(stages=3, readout="expectation"),
        learning_rate=4e-3,
        warmup_steps=5,
        precision="float32",
        total_steps=160,
        log_every=8,
    )
    train(config, tmp_path, stream=stream, validation=[])
    losses = [line["loss"] for line in log(tmp_path, "train")]
    assert losses[-1] < losses[0] / 2, losses  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["per-stage", "accumulate", "shared-encoder"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_runs_on_the_gpu_and_resumes(tiny: TrainConfig, tmp_path: Path, mode: str, precision: str):
    """Fused Adam with channels-last weights, the guard on the device, checkpoints to and from the GPU."""
    source = PlaneSource(128, 128)
    config = replace(
        tiny,
        height=128,
        width=128,
        update=mode,
        precision=precision,
        network=GBiNetConfig(),
        readout_weight=0.1,
        total_steps=6,
    )  # type: ignore[arg-type]
    validation = [source.batch(900, 1)]

    def interrupt(report: TrainStatus) -> None:
        if report.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    stream = BrokenStream(source, {1})
    first = train(config, tmp_path, stream=stream, validation=validation, report=interrupt)
    assert first.progress.step == 4
    result = train(config, tmp_path, resume=True, stream=stream, validation=validation)
    assert result.finished
    assert result.progress.skipped == 1
    assert result.validation is not None
    assert all(bool(torch.isfinite(v).all()) for v in weights(tmp_path / "last.safetensors").values())
