"""`gbinet validate`: how good weights are on a rendered validation set, stage by stage or by difficulty."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gbinet.cli.options import Assets, OutFile, otherwise
from gbinet.cli.say import say, say_lines, tell
from gbinet.errors import InputError
from gbinet.formats.atomic import write_json
from gbinet.inference.device import pick_device
from gbinet.model.gbinet import GBiNet
from gbinet.render.validation import LIFE_SCENES, life_samples
from gbinet.training.config import preset
from gbinet.training.samples import validation_batches
from gbinet.training.validate import table, table_by_name, validate, validate_by_name


def run(
    weights: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[WEIGHTS]")] = "gbinet",
    set_: Annotated[Literal["tables", "life"], tyro.conf.arg(name="set")] = "tables",
    assets: Assets = None,
    scenes: Annotated[int | None, otherwise(f"8; with --set life {LIFE_SCENES}", "INT")] = None,
    stages: Annotated[int | None, otherwise("as the weights were trained", "INT")] = None,
    first_stage: int = 6,
    out: OutFile = None,
) -> None:
    """Print the share of pixels within each threshold, for every stage and read-out, or for every difficulty.

    Args:
        weights: A weights file of gbinet, a published .ckpt, or the name of bundled weights.
        set_: tables: errors in millimetres, on close views of tables. life: relative errors in percent, on
            scenes of all kinds with one difficulty each.
        assets: Folder of objects and textures, as in training.
        scenes: Number of scenes; with --set life, per difficulty.
        stages: Number of stages of the search.
        first_stage: First stage to print; with --set life, only the last stage is printed.
        out: JSON file for all measurements.
    """
    if scenes is not None and scenes < 1:
        raise InputError(f"--scenes must be at least 1, got {scenes}")
    device = pick_device()
    model = GBiNet.from_pretrained(weights).to(device)
    if set_ == "life":
        samples = life_samples(assets, device=device, scenes=LIFE_SCENES if scenes is None else scenes)
        errors = validate_by_name(model, (sample.batch() for sample in samples), stages)
        say_lines(table_by_name(errors))
        _finish(out, {name: found.to_dict() for name, found in errors.items()})
        return
    config = preset("rendered", assets=assets, validation_scenes=8 if scenes is None else scenes)
    result = validate(model, validation_batches(config, device), stages)
    say_lines(table(result, first_stage))
    _finish(out, result.to_dict())


def _finish(out: Path | None, content: dict[str, Any]) -> None:
    if out is not None:
        say(f"figures in {write_json(out, content)}")
    tell(content)
