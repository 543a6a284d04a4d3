"""`gbinet validate`: how good weights are, stage by stage, on the rendered validation set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from gbinet.evaluation.scores import write_json
from gbinet.inference.device import pick_device
from gbinet.model.gbinet import GBiNet
from gbinet.training.config import preset
from gbinet.training.samples import validation_batches
from gbinet.training.validate import table, validate


def run(
    weights: Annotated[str, tyro.conf.Positional] = "gbinet",
    assets: Path | None = None,
    scenes: int = 8,
    stages: int | None = None,
    first_stage: int = 6,
    json: Path | None = None,
) -> None:
    """Print the share of pixels within each threshold, for every stage and read-out.

    Args:
        weights: A weights file of gbinet, a published .ckpt, or the name of bundled weights.
        assets: Folder of objects and textures, as in training; default: generated shapes.
        scenes: Scenes of the validation set.
        stages: Stages to search; default: the network's own.
        first_stage: First stage to print.
        json: Write everything here.
    """
    device = pick_device()
    model = GBiNet.from_pretrained(weights).to(device)
    config = preset("rendered", assets=assets, validation_scenes=scenes)
    result = validate(model, validation_batches(config, device), stages)
    print(table(result, first_stage))
    if json:
        write_json(json, result.to_dict())
