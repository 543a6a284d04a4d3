"""`gbinet train`: train the network on rendered scenes or on a data set."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console

from gbinet.training.checkpoint import resumed_config
from gbinet.training.config import PRESETS, TrainConfig, field_help, preset
from gbinet.training.progress import line
from gbinet.training.trainer import Report, train

Preset = Literal["rendered", "dtu", "dtu-crops", "blendedmvs"]


def _overrides() -> type:
    """TrainConfig with every field optional: what is not given keeps the preset's value."""
    hints, explained = get_type_hints(TrainConfig), field_help()
    columns: list[Any] = []
    for option in fields(TrainConfig):
        kind = hints[option.name]
        shown = tyro.conf.arg(
            help=explained[option.name], metavar=_metavar(kind), help_behavior_hint="(default: the preset's)"
        )
        columns.append((option.name, Annotated[kind | None, shown], field(default=None)))
    return make_dataclass("Options", columns, frozen=True)


def _metavar(kind: Any) -> str:
    """How help shows a value of a field's type."""
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    if get_origin(kind) is tuple:
        return f"{get_args(kind)[0].__name__.upper()} ..."
    if kind is bool:
        return "{True,False}"
    return "PATH" if Path in get_args(kind) else str(kind.__name__).upper()


if TYPE_CHECKING:
    Options = Any
    NOTHING_CHANGED: Any = None
else:
    Options = _overrides()
    NOTHING_CHANGED = Options()


def run(
    out: Path | None = None,
    preset_name: Annotated[Preset, tyro.conf.arg(name="preset")] = "rendered",
    resume: bool = False,
    options: Annotated[Options, tyro.conf.arg(name="")] = NOTHING_CHANGED,
) -> None:
    """Train the network. `gbinet train --preset dtu --data DIR` is the paper's recipe.

    Weights are in OUT/best.safetensors (by validation) and OUT/last.safetensors. Ctrl-C stops cleanly.

    Args:
        out: Folder of the run: weights, checkpoint, log, TensorBoard curves. Default: runs/PRESET.
        preset_name: Where to start from; every option below changes one value of it.
        resume: Go on from the newest checkpoint in OUT, exactly where it stopped, with the same options.
        options: What to change.
    """
    assert set(PRESETS) == set(Preset.__args__)  # type: ignore[attr-defined]
    out = out or Path("runs") / preset_name
    config = resumed_config(out, vars(options)) if resume else preset(preset_name, **vars(options))
    console = Console()
    with console.status("getting ready") as status:

        def show(report: Report) -> None:
            # On a terminal one line is rewritten, and only events stay; elsewhere every line is printed.
            if console.is_terminal and not report.text:
                status.update(line(report))
            else:
                console.print(line(report), highlight=False)

        result = train(config, out, resume=resume, report=show)
    state = "finished" if result.finished else "stopped; --resume goes on"
    best = out / "best.safetensors"
    weights = best if best.exists() else out / "last.safetensors"
    console.print(f"{state} after {result.progress.step} steps. Weights: {weights}", highlight=False)
