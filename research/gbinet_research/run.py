"""Variants in training side by side: every batch is rendered once and handed to all of them.

At the sizes of the comparison one network does not keep a GPU busy and waits for the renderer. What a variant
becomes does not depend on who is trained beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from shutil import copyfile

import torch
from torch import Tensor

from gbinet.errors import GBiNetError, InputError
from gbinet.formats.atomic import atomic_path, write_json
from gbinet.formats.reading import is_file
from gbinet.inference.device import pick_device
from gbinet.model.gbinet import GBiNet
from gbinet.provenance import maker
from gbinet.scenes.batch import Batch
from gbinet.training import checkpoint
from gbinet.training.distributed import Processes
from gbinet.training.samples import Stream, open_stream, validation_batches
from gbinet.training.trainer import Trainer
from gbinet.training.validate import validate
from gbinet_research.results import check_same, read_result, result_path, weights_path
from gbinet_research.start import read_start, take_over
from gbinet_research.variants import VARIANTS, Budget, Variant, train_config

Tell = Callable[[str], None]
TELL_SECONDS = 20.0
CHECKPOINT_SECONDS = 180.0
BEGUN = "begun.json"  # beside the checkpoints: what the training was begun with


class Training:
    """One variant in training, on a CUDA stream of its own."""

    def __init__(
        self, variant: Variant, budget: Budget, work: Path, stream: Stream, device: torch.device
    ) -> None:
        self.variant = variant
        config = train_config(variant, budget, device)
        folder = work / variant.name
        resume = _goes_on(folder, variant, budget)
        self.trainer = Trainer(
            config,
            folder,
            Processes(),
            device,
            resume,
            stream,
            [],
            None,
            network=variant.network,
            loss=variant.loss,
        )
        if budget.start is not None and not resume:
            take_over(self.trainer.model, read_start(budget.start))
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.failure = ""  # why it is given up

    @property
    def step(self) -> int:
        return self.trainer.progress.step

    def train(self, batch: Batch) -> Tensor:
        """One step; its measures [stages, M]."""
        fraction = self.trainer.fraction()
        if self.side is None:
            return self.trainer.train_step(batch, fraction)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            measures = self.trainer.train_step(batch, fraction)
        for tensor in batch.tensors():
            tensor.record_stream(self.side)
        return measures

    def wait(self) -> None:
        if self.side is not None:
            self.side.synchronize()

    def save(self) -> None:
        self.wait()
        self.trainer.save()

    def check(self) -> None:
        """Give it up if its gradients are not finite any more: the others go on."""
        self.wait()
        try:
            self.trainer.optimiser.check()
        except GBiNetError as error:
            self.failure = str(error)

    def finish(self) -> GBiNet:
        """The weights that are worth most; the rest of its memory is given back."""
        self.wait()
        self.trainer.runner.release()
        self.trainer.tracker.close()
        return self.trainer.best_weights()


def _goes_on(folder: Path, variant: Variant, budget: Budget) -> bool:
    """Whether a work folder holds a training to go on with; one that was begun in another way is refused."""
    path = folder / BEGUN
    if folder.is_dir() and any(folder.iterdir()) and not path.is_file():
        raise InputError(f"{folder} holds files of something else: choose another --work, or move them away")
    if not checkpoint.states(folder):
        write_json(path, {"design": variant.design, "budget": budget.to_dict()})
        return False
    check_same(folder, read_result(path) or {}, variant, budget)
    return True


def train_together(
    variants: Sequence[Variant],
    budget: Budget,
    out: Path,
    work: Path,
    *,
    minutes: float = 0.0,
    stream: Stream | None = None,
    samples: Sequence[Batch] | None = None,
    tell: Tell,
) -> None:
    """Train variants on the same batches and score them; `out` gets NAME.json and NAME.safetensors of each.

    What is finished is not done again. After `minutes` it stops, without results: `work` then holds
    checkpoints, and the same command goes on from them. `stream` and `samples` replace the training samples
    and the validation set.
    """
    missing = [v for v in variants if not v.weights_of and not _is_finished(v, budget, out, tell)]
    if not missing:
        return
    for variant in missing:
        _check_free(weights_path(out, variant.name), weights_path(work / variant.name, variant.name))
    device = pick_device()
    # The samples of all are those of the budget's seed, whatever their own.
    first = replace(train_config(missing[0], budget, device), seed=budget.seed)
    stream = stream or open_stream(first, Processes(), device)
    trainings = [Training(variant, budget, work, stream, device) for variant in missing]
    if not _loop(trainings, stream, budget, device, 60 * minutes, tell):
        return
    for training in trainings:
        training.save()  # what fails from here on is done again without training
        if training.failure:
            tell(f"{training.variant.name}: given up: {training.failure}")
    trainings = [t for t in trainings if not t.failure]
    samples = validation_samples(budget, device) if samples is None else samples
    names = [t.variant.name for t in trainings]
    for training in trainings:
        progress = training.trainer.progress
        trained: dict[str, object] = {
            "samples": progress.samples,
            "steps": progress.step,
            "seconds": progress.seconds,
            "side_by_side": names,  # the seconds are of all of them together
            "skipped": progress.skipped,
        }
        try:
            _score(training, trained, budget, out, samples, tell)
        except (GBiNetError, RuntimeError) as error:
            tell(f"{training.variant.name}: could not be scored: {error}; run it again")


def _is_finished(variant: Variant, budget: Budget, out: Path, tell: Tell) -> bool:
    path = result_path(out, variant.name)
    stored = read_result(path)
    if stored is None:
        return False
    check_same(path, stored, variant, budget)
    tell(f"{variant.name}: finished before")
    return True


def _check_free(path: Path, own: Path) -> None:
    """Weights without a result are replaced only if they are ours: the same file lies in the work folder."""
    if path.exists() and not (is_file(path) and is_file(own) and cmp(path, own, shallow=False)):
        raise InputError(
            f"{path} is there, but no {path.stem}.json that says what it is, so it is not replaced: move it "
            "away, or choose another folder"
        )


def _loop(
    trainings: Sequence[Training],
    stream: Stream,
    budget: Budget,
    device: torch.device,
    limit: float,
    tell: Tell,
) -> bool:
    """Train to the end; False if the time was over before. `limit` in seconds, 0 = none."""
    began = shown = saved = time.monotonic()
    start = min(t.step for t in trainings)
    batches = stream.batches(start)
    for step in range(start, budget.steps):
        now = time.monotonic()
        if limit and now - began > limit:
            for training in trainings:
                training.save()
            tell(f"stopped after {step} of {budget.steps} steps: the minutes are over; run it again to go on")
            return False
        if now - saved > CHECKPOINT_SECONDS:
            saved = now
            for training in trainings:
                training.save()
        batch = next(batches).to(device, non_blocking=True)
        # One that went on further before a command was stopped waits for the others.
        going = [t for t in trainings if t.step == step and not t.failure]
        measures = {t.variant.name: t.train(batch) for t in going}
        if now - shown > TELL_SECONDS or step == start + 3:
            shown = now
            for training in going:
                training.check()
            losses = ", ".join(
                f"{name} {float(m[-1, 2] / m[-1, 0].clamp(min=1)):.3f}" for name, m in measures.items()
            )
            failures = {t.trainer.runner.failure for t in going} - {""}
            note = f"; without a CUDA graph: {failures}" if failures else ""
            tell(f"step {step + 1} of {budget.steps}, {now - began:.0f} s; last stage's loss: {losses}{note}")
    for training in trainings:
        training.check()
    return True


def _score(
    training: Training,
    trained: dict[str, object],
    budget: Budget,
    out: Path,
    samples: Sequence[Batch],
    tell: Tell,
) -> None:
    device, variant = pick_device(), training.variant
    small = training.finish().save(weights_path(training.trainer.out, variant.name), half=True)
    model = variant.network.from_pretrained(small).to(device)  # what is scored is what is kept
    stages = variant.config.stages
    scored = validate(model, samples, stages)
    validation = scored.to_dict()
    if variant.most_stages > stages:
        further = validate(model, samples, variant.most_stages).to_dict()
        validation |= {k: further[k] for k in ("centres", "expectations", "smooth", "valid_share")}
    result = {
        "variant": variant.name,
        "label": variant.label,
        "design": variant.design,
        "budget": budget.to_dict(),
        "trained": _rounded(trained),
        "stages": stages,
        "validation": _rounded(validation),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else str(device),
        "made_by": maker(model).to_dict(),
    }
    with atomic_path(weights_path(out, variant.name)) as temporary:
        copyfile(small, temporary)
    path = write_json(result_path(out, variant.name), result)
    within = " / ".join(f"{100 * share:.1f}" for share in scored.final.within.values())
    tell(f"{variant.name}: within {within} %, in {path}")


def _rounded(value: object) -> object:
    """Shares and errors with the digits that mean something."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def validation_samples(budget: Budget, device: torch.device) -> Sequence[Batch]:
    """The samples that all variants are scored on."""
    config = train_config(VARIANTS["gbinet"], budget, device)
    config = replace(config, validation_scenes=budget.validation_scenes)
    return list(validation_batches(config, device, budget.validation_size))
