"""`gbinet train`: train the network on rendered scenes or on a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from gbinet.errors import InputError
from gbinet.training.checkpoint import resumed_config
from gbinet.training.config import TrainConfig, preset
from gbinet.training.progress import line
from gbinet.training.trainer import TrainStatus, train


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    out: Path | None = None  # folder of the run: weights, checkpoint, log, curves; default: runs/PRESET
    preset: Literal["rendered", "dtu", "dtu-crops", "blendedmvs"] = "rendered"  # of all options below
    model: Literal["gbinet", "binet", "gbinet-6", "bundled"] | None = None  # the network; default: gbinet
    resume: bool = False  # continue from the newest checkpoint in OUT, exactly where it stopped

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


def command(arguments: Sequence[str]) -> Callable[..., None]:
    """The verb, its options' defaults being those of the preset or of the run that is resumed."""
    begin, _ = tyro.cli(Start, args=arguments, return_unknown_args=True, add_help=False)
    config = begin.config()

    def run(
        start: Annotated[Start, tyro.conf.OmitArgPrefixes] = begin,
        training: Annotated[TrainConfig, tyro.conf.OmitArgPrefixes] = config,
    ) -> None:
        """Train the network. `gbinet train --preset dtu --data DIR` is the paper's recipe.

        Weights are in OUT/best.safetensors (by validation) and OUT/last.safetensors. Ctrl-C stops cleanly.
        """
        _run(start, training)

    return run


def _check_folders(config: TrainConfig) -> None:
    """What is read must be there: said now, not by the reader of one of its scans."""
    for name, path in (("--data", config.data), ("--assets", config.assets)):
        if path is not None and not path.is_dir():
            raise InputError(f"{name} {path}: there is no such folder")
    if config.source != "rendered" and config.data is None:
        raise InputError(f"--data is missing: the folder of {config.source}'s training set")


def _run(start: Start, config: TrainConfig) -> None:
    _check_folders(config)
    out, console = start.folder, Console()
    with console.status("getting ready") as status:

        def show(report: TrainStatus) -> None:
            # On a terminal one line is rewritten, and only events stay; elsewhere every line is printed.
            if console.is_terminal and not report.text:
                status.update(line(report))
            else:
                console.print(line(report), highlight=False, soft_wrap=True)

        result = train(config, out, resume=start.resume, report=show)
    state = "finished" if result.finished else "stopped; --resume continues"
    best = out / "best.safetensors"
    weights = best if best.exists() else out / "last.safetensors"
    console.print(f"{state} after {result.progress.step} steps. Weights: {weights}", highlight=False)
