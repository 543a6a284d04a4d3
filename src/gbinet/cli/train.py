"""`gbinet train`: train the network on rendered scenes or on a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from gbinet.cli.options import Size, otherwise
from gbinet.cli.say import say
from gbinet.errors import InputError, no_folder
from gbinet.scenes.sfm.outcome import listed
from gbinet.training.checkpoint import resumed_config
from gbinet.training.config import TrainConfig, preset
from gbinet.training.progress import line
from gbinet.training.samples import own_folders
from gbinet.training.trainer import TrainStatus, train


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    out: Annotated[
        Path | None,
        tyro.conf.arg(aliases=["-o"], metavar="PATH", help_behavior_hint="(default: runs/PRESET)"),
    ] = None
    """Folder of the run: weights, checkpoint, log, curves."""
    preset: Literal["rendered", "scenes", "dtu", "dtu-crops", "blendedmvs"] = "rendered"
    """Sets the defaults of the options below."""
    model: Annotated[
        Literal["gbinet", "binet", "gbinet-6", "bundled"] | None,
        otherwise("gbinet", "{gbinet,binet,gbinet-6,bundled}"),
    ] = None
    """The network. Sets the defaults of the options at the end."""
    resume: bool = False  # Continue from the newest checkpoint in --out.
    size: Size | None = None  # WIDTHxHEIGHT of the training images in pixels; multiples of 64.

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / self.preset

    def config(self) -> TrainConfig:
        """The options that the command line may change."""
        if not self.resume:
            return preset(self.preset, self.model or "gbinet")
        if self.model is not None:
            raise InputError("--model: a resumed run keeps its network; omit it")
        return resumed_config(self.folder)


@dataclass(frozen=True)
class _Options(TrainConfig):
    """Everything that decides what the weights become; stored with every checkpoint."""

    height: tyro.conf.Suppress[int] = TrainConfig.height  # --size sets both
    width: tyro.conf.Suppress[int] = TrainConfig.width

    def sized(self, size: tuple[int, int] | None) -> TrainConfig:
        """What is trained with, at the size that was asked for."""
        values = {field.name: getattr(self, field.name) for field in fields(TrainConfig)}
        return TrainConfig(**values | ({} if size is None else {"width": size[0], "height": size[1]}))


def command(arguments: Sequence[str]) -> Callable[..., None]:
    """The verb, its options' defaults being those of the preset or of the run that is resumed."""
    begin, _ = tyro.cli(Start, args=arguments, return_unknown_args=True, add_help=False)
    known = begin.config()
    options = _Options(**{field.name: getattr(known, field.name) for field in fields(TrainConfig)})
    begin = replace(begin, size=begin.size or (known.width, known.height))

    def run(
        start: Annotated[Start, tyro.conf.OmitArgPrefixes] = begin,
        training: Annotated[_Options, tyro.conf.OmitArgPrefixes] = options,
    ) -> None:
        """Train the network. `gbinet train --preset dtu --data DIR` is the paper's recipe.

        Weights are in OUT/best.safetensors (by validation) and OUT/last.safetensors. Ctrl-C stops cleanly.
        """
        _run(start, training.sized(start.size))

    return run


def _check_folders(config: TrainConfig) -> None:
    """What is given must be read, and what is read must be there: said now, not by a reader of scans."""
    for name, path in (("--data", config.data), ("--assets", config.assets)):
        if path is not None and not path.is_dir():
            raise InputError(f"{name} {no_folder(path)}")
    if config.source == "rendered" and config.data is not None:
        raise InputError(
            "--data is only read with --preset scenes (scenes of yours with true depth), dtu, dtu-crops or "
            "blendedmvs; rendered scenes need none (--assets for objects of yours)"
        )
    if config.source != "rendered" and config.data is None:
        raise InputError(f"--data is missing: the folder that --preset {config.source} reads")


def _run(start: Start, config: TrainConfig) -> None:
    _check_folders(config)
    out, console = start.folder, Console()
    if config.source == "scenes" and config.data is not None:
        parts = own_folders(config.data, config.validation_scenes > 0)
        for what, folders in (("training on", parts.trained), ("held back", parts.held_back)):
            if folders:
                say(f"{what}: {listed([path.name for path in folders])}")
    with console.status("getting ready") as status:

        def show(report: TrainStatus) -> None:
            # On a terminal one line is rewritten, and only events stay; elsewhere every line is printed.
            if console.is_terminal and not report.text:
                status.update(line(report))
            else:
                console.print(line(report), highlight=False, soft_wrap=True)

        result = train(config, out, resume=start.resume, report=show)
    if not result.progress.step:
        raise InputError(
            "the command ended before its first step, so there is nothing to resume: give it more --minutes, "
            "a smaller --size or --validation-scenes 0"
        )
    state = "finished" if result.finished else "stopped (--resume continues)"
    best = out / "best.safetensors"
    weights = best if best.exists() else out / "last.safetensors"
    console.print(f"{state} after {result.progress.step} steps. Weights: {weights}", highlight=False)
    if config.init is not None and best.exists() and result.progress.best_step == 0:
        console.print(
            "no validation was better than that of the weights which the run began with: "
            "best.safetensors holds those, last.safetensors the trained ones",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
