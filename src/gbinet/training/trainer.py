"""The training loop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gbinet.errors import InputError, WeightsError
from gbinet.model.gbinet import GBiNet
from gbinet.scenes.batch import Batch
from gbinet.training import checkpoint
from gbinet.training.checkpoint import TrainProgress
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import Processes, connect, synchronise_batch_norm
from gbinet.training.graph import StepRunner
from gbinet.training.loss import MEASURES, LossOfStage, stage_loss
from gbinet.training.optimise import Optimiser, learning_rate, to_channels_last
from gbinet.training.samples import FULL_SIZE, Stream, open_stream, validation_batches
from gbinet.training.tracking import Tracker, stage_measures
from gbinet.training.updates import Step
from gbinet.training.validate import Validation, measure, predict

EPOCHS = 16  # the paper's number: equal parts of a run whose samples have no epochs
MARGIN_SECONDS = 3.0  # reserved at the end of a command for the checkpoint


@dataclass(frozen=True)
class TrainStatus:
    """The contents of a progress line."""

    step: int
    fraction: float  # of the whole run
    samples_per_second: float
    seconds_left: float  # of this command
    loss: float  # mean over stages of the cross-entropy
    valid_share: float  # of the last stage
    text: str = ""  # a message


@dataclass(frozen=True)
class TrainResult:
    """The state of a run after a command."""

    out: Path
    progress: TrainProgress
    validation: Validation | None  # the last one
    finished: bool  # the whole run, not only this command


def train(
    config: TrainConfig,
    out: Path,
    *,
    resume: bool = False,
    stream: Stream | None = None,
    validation: Sequence[Batch] | None = None,
    report: Callable[[TrainStatus], None] | None = None,
    network: type[GBiNet] = GBiNet,
    loss: LossOfStage = stage_loss,
) -> TrainResult:
    """Train as configured and write weights, checkpoints and the log into `out`.

    Under torchrun, all processes call this. Ctrl-C or SIGTERM finishes the step and writes a checkpoint
    first.

    `stream` and `validation` replace the samples that the configuration names. A network that searches in
    another way has another class (`network`) and loss of a stage (`loss`).
    """
    if not resume and checkpoint.states(out):
        raise InputError(f"{out} already holds a run: continue it with --resume, or choose another folder")
    processes, device = connect()
    trainer = Trainer(
        config, out, processes, device, resume, stream, validation, report, network=network, loss=loss
    )
    try:
        with _stop_on_signal(trainer):
            return trainer.run()
    finally:
        trainer.tracker.close()
        processes.close()


def initial_weights(config: TrainConfig, resumed: bool = False, network: type[GBiNet] = GBiNet) -> GBiNet:
    """The network before the first step: random weights, or those of the file `init`.

    resumed: weights will be loaded from a checkpoint, and the file may not exist any more.
    """
    torch.manual_seed(config.seed)
    model = network(config.network)
    if config.init is not None and not resumed:
        loaded = network.from_pretrained(config.init).state_dict()
        random = model.state_dict()
        if config.network.refiner:  # a new one if the file has none
            loaded = {k: v for k, v in random.items() if k.startswith("refiner.")} | loaded
        else:  # that of the file fits its weights only, and has to be trained again after them
            loaded = {k: v for k, v in loaded.items() if not k.startswith("refiner.")}
        if set(random) != set(loaded) or any(random[k].shape != v.shape for k, v in loaded.items()):
            raise WeightsError(
                f"{config.init} has other tensors than the configured network; for the bundled weights give "
                "--model bundled, for others the options of their network"
            )
        model.load_state_dict(loaded)
    if config.update == "refiner":
        if config.init is None and not resumed:
            raise InputError("a refiner is trained for a finished network: give its weights as --init")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("refiner."))
    return model


class Trainer:
    """The part of a run that one command does."""

    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        processes: Processes,
        device: torch.device,
        resume: bool,
        stream: Stream | None,
        validation: Sequence[Batch] | None,
        report: Callable[[TrainStatus], None] | None,
        *,
        network: type[GBiNet] = GBiNet,
        loss: LossOfStage = stage_loss,
    ) -> None:
        self.started = time.monotonic()
        self.config = config = config.with_length()
        self.loss = loss
        self.out = out
        self.processes = processes
        self.device = device
        self.report = report
        self.stop_requested = False
        self.model = initial_weights(config, resume, network).to(device).train()
        processes.broadcast_weights(self.model)
        if processes.count > 1:
            synchronise_batch_norm(self.model)
        to_channels_last(self.model)
        self.optimiser = Optimiser(self.model, config, processes)
        self.runner = StepRunner(self.model, self.optimiser)
        self.progress = TrainProgress()
        if resume:
            state = checkpoint.newest(out)
            checkpoint.check_same_run(state, config)
            self.progress = checkpoint.load(state, self.model, self.optimiser)
        self.seconds_before = self.progress.seconds
        self.stream = stream or open_stream(config, processes, device)
        self._samples = validation
        self.tracker = Tracker(out, config.tensorboard) if processes.is_main else _SilentTracker()
        self.validation: Validation | None = None
        self.validation_seconds = 0.0

    # ---- time ----------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds of this command."""
        return time.monotonic() - self.started

    def fraction(self) -> float:
        """How much of the whole run is done."""
        config, progress = self.config, self.progress
        if config.total_steps:
            return progress.step / config.total_steps
        minutes = config.total_minutes
        if not minutes and config.epochs:
            if not self.stream.steps_per_epoch:
                raise InputError("say how long to train: --total-steps N or --total-minutes N")
            return progress.step / (config.epochs * self.stream.steps_per_epoch)
        seconds = self.seconds_before + self.elapsed
        whole = 60 * minutes if minutes else self.seconds_before + self.limit
        return self.processes.from_main(min(seconds / whole, 1.0), self.device)

    @property
    def limit(self) -> float:
        """Seconds after which this command stops training, to leave time for validation and checkpoint."""
        whole = 60 * self.config.minutes
        return whole - min(self.validation_seconds + MARGIN_SECONDS, 0.2 * whole)

    def decide(self, last_validation: float, last_checkpoint: float) -> list[bool]:
        """Whether to stop, to validate, and to write a checkpoint now: all processes together."""
        late = self.config.minutes > 0 and self.elapsed >= self.limit
        due = [
            minutes > 0 and self.elapsed - last >= 60 * minutes
            for minutes, last in (
                (self.config.validate_minutes, last_validation),
                (self.config.checkpoint_minutes, last_checkpoint),
            )
        ]
        return self.processes.any([late or self.stop_requested, *due], self.device)

    # ---- the loop ------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        config, progress = self.config, self.progress
        self.tracker.event("start", progress.step, {"config": config.to_dict(), "device": str(self.device)})
        if self.device.type == "cuda" or not (
            config.minutes or config.total_minutes
        ):  # a short run on a CPU has no time
            self.validate()
        last_checkpoint = last_validation = self.elapsed
        batches = self.stream.batches(progress.step)
        window = _Window(config.network.stages, self.device)
        fraction = self.fraction()
        while fraction < 1:
            stop, validate_now, save_now = self.decide(last_validation, last_checkpoint)
            if stop:
                break
            began = self.elapsed
            if validate_now:
                self.validate()
                last_validation = self.elapsed
            if save_now:
                self.save()
                last_checkpoint = self.elapsed
            window.started += self.elapsed - began  # the rate is of training only
            batch = next(batches).to(self.device, non_blocking=True)
            window.add(self.train_step(batch, fraction), len(batch.images) * self.processes.count)
            fraction = self.fraction()
            if progress.step % config.log_every == 0:
                self.log(window, fraction)
                window = _Window(config.network.stages, self.device)
        if window.steps:
            self.log(window, fraction)
        if progress.step:  # without a step, there is nothing to resume
            self.save()
            if not self.stop_requested:
                self.validate()
                self.save()
        return TrainResult(self.out, progress, self.validation, fraction >= 1 and progress.step > 0)

    def train_step(self, batch: Batch, fraction: float) -> Tensor:
        """One batch; its measures [stages, M]."""
        config, progress = self.config, self.progress
        _check_size(batch)
        per_epoch = self.stream.steps_per_epoch
        epoch = progress.step // per_epoch if per_epoch else int(EPOCHS * fraction)
        step = Step(config, config.stages_in_epoch(epoch), self.processes, self.loss)
        self.optimiser.schedule(learning_rate(config, progress.step, fraction), progress.step)
        measures = self.runner(batch, step)
        progress.step += 1
        progress.samples += len(batch.images) * self.processes.count
        return measures

    def log(self, window: _Window, fraction: float) -> None:
        """Write the measures since the last time to the log, and report progress. Waits for the GPU."""
        rows = stage_measures(self.processes.sum(window.measures)[: window.stages])
        health = self.optimiser.check()
        progress = self.progress
        rate = window.samples / max(time.monotonic() - window.started, 1e-9)
        progress.skipped = health["skipped"]
        progress.seconds = self.seconds_before + self.elapsed
        loss = sum(r["loss"] for r in rows) / max(len(rows), 1)
        if self.config.update == "refiner":  # the stages are not trained
            loss = rows[-1]["readout"]
        values = {
            "loss": loss,
            "samples": float(progress.samples),
            "samples_per_second": rate,
            "learning_rate": float(self.optimiser.rate),
            "fraction": fraction,
            **health,
        }
        if self.device.type == "cuda":
            values["peak_memory_mib"] = torch.cuda.max_memory_allocated(self.device) / 2**20
        self.tracker.training(progress.step, values, rows)
        if self.report is not None and self.processes.is_main:
            valid = rows[-1]["valid_share"] if rows else 0.0
            note = f"{int(health['skipped'])} bad batches skipped so far" if health["skipped"] else ""
            if self.runner.failure and not note:
                note = f"steps run without a CUDA graph: {self.runner.failure}"
            left = self._seconds_left(fraction)
            self.report(TrainStatus(progress.step, fraction, rate, left, loss, valid, note))

    def _seconds_left(self, fraction: float) -> float:
        """Seconds that this command will still run, estimated."""
        done = self.seconds_before + self.elapsed
        of_run = done * (1 - fraction) / fraction if fraction > 0 else math.inf
        of_command = 60 * self.config.minutes - self.elapsed if self.config.minutes else math.inf
        return max(0.0, min(of_run, of_command))

    # ---- results -------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Measure the averaged weights, and save them if they are the best so far."""
        if not self.processes.is_main:
            self.processes.wait()
            return
        samples = self.validation_samples()
        if samples:
            started = time.monotonic()
            self.runner.release()  # validation images are larger and need the memory
            model = self.best_weights()
            predictions = [predict(model, s, self.config.network.stages) for s in samples]
            result = measure(predictions)
            self.validation = result
            self.tracker.validation(self.progress.step, result, predictions)
            best = self.progress.best
            better = best is None or result.score > best
            if better:
                self.progress.best, self.progress.best_step = result.score, self.progress.step
                model.save(self.out / "best.safetensors")
            self.validation_seconds = time.monotonic() - started
            self._report_message(f"validation {result.summary()}{' (best so far)' if better else ''}")
        self.processes.wait()

    def validation_samples(self) -> Sequence[Batch]:
        if self._samples is None:
            # On a CPU a rendered scene of full size takes minutes: there it has the size of training samples.
            size = FULL_SIZE if self.device.type == "cuda" else (self.config.width, self.config.height)
            self._samples = validation_batches(self.config, self.device, size)
        return self._samples

    def best_weights(self) -> GBiNet:
        """The averaged weights, if there are any; else those that are trained."""
        return self.optimiser.averaged or self.model

    def save(self) -> None:
        """The checkpoint to resume from, and the present weights by themselves."""
        self.progress.seconds = self.seconds_before + self.elapsed
        self.progress.skipped = float(self.optimiser.skipped)
        if self.processes.is_main:
            checkpoint.save(self.out, self.model, self.optimiser, self.config, self.progress)
            self.best_weights().save(self.out / "last.safetensors")
        self.processes.wait()

    def _report_message(self, text: str) -> None:
        if self.report is not None:
            fraction = self.fraction() if self.processes.count == 1 else 0.0
            left = self._seconds_left(fraction)
            self.report(TrainStatus(self.progress.step, fraction, 0.0, left, 0.0, 0.0, text))


class _Window:
    """Sums of measures between two lines of the log, on the device."""

    def __init__(self, stages: int, device: torch.device) -> None:
        self.measures = torch.zeros(stages, len(MEASURES), device=device)
        self.stages = 0  # largest number of stages of a step
        self.steps = 0
        self.samples = 0
        self.started = time.monotonic()

    def add(self, measures: Tensor, samples: int) -> None:  # [stages, M]
        self.measures[: len(measures)] += measures
        self.stages = max(self.stages, len(measures))
        self.steps += 1
        self.samples += samples


class _SilentTracker(Tracker):
    """For processes that do not write."""

    def __init__(self) -> None:
        self._writer = None

    def event(self, kind: str, step: int, values: object) -> None:
        pass


def _check_size(batch: Batch) -> None:
    height, width = batch.images.shape[-2:]
    if height % 8 or width % 8:
        raise InputError(f"training images must have sides that are multiples of 8, got {width}x{height}")


@contextmanager
def _stop_on_signal(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM requests a clean stop; the second acts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    old = {s: signal.getsignal(s) for s in signals}

    def request_stop(number: int, frame: object) -> None:
        trainer.stop_requested = True
        for s in signals:
            signal.signal(s, old[s])

    for s in signals:
        signal.signal(s, request_stop)
    try:
        yield
    finally:
        for s in signals:
            signal.signal(s, old[s])
