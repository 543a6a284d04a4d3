"""`gbinet validate`: how good weights are on a rendered validation set, stage by stage or by difficulty."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from gbinet.evaluation.scores import write_json
from gbinet.inference.device import pick_device
from gbinet.model.gbinet import GBiNet
from gbinet.render.validation import LIFE_SCENES, life_samples
from gbinet.training.config import preset
from gbinet.training.samples import validation_batches
from gbinet.training.validate import table, table_by_name, validate, validate_by_name


def run(
    weights: Annotated[str, tyro.conf.Positional] = "gbinet",
    set_: Annotated[Literal["tables", "life"], tyro.conf.arg(name="set")] = "tables",
    assets: Path | None = None,
    scenes: int | None = None,
    stages: int | None = None,
    first_stage: int = 6,
    json: Path | None = None,
) -> None:
    """Print the share of pixels within each threshold, for every stage and read-out, or for every difficulty.

    Args:
        weights: A weights file of gbinet, a published .ckpt, or the name of bundled weights.
        set_: tables: millimetres off, of narrow views of tables. life: percent of the depth, of scenes of all
            kinds with one difficulty each.
        assets: Folder of objects and textures, as in training; default: generated shapes.
        scenes: How many; of life, of each difficulty. Default: 8 of tables, 4 of life.
        stages: Stages to search; default: the network's own.
        first_stage: First stage to print.
        json: Write everything here.
    """
    device = pick_device()
    model = GBiNet.from_pretrained(weights).to(device)
    if set_ == "life":
        samples = life_samples(assets, device=device, scenes=scenes or LIFE_SCENES)
        errors = validate_by_name(model, (sample.batch() for sample in samples), stages)
        print(table_by_name(errors))
        if json:
            write_json(json, {name: found.to_dict() for name, found in errors.items()})
        return
    config = preset("rendered", assets=assets, validation_scenes=scenes or 8)
    result = validate(model, validation_batches(config, device), stages)
    print(table(result, first_stage))
    if json:
        write_json(json, result.to_dict())
