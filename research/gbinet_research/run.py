"""One variant: train, score, write its result. What is finished is not done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gbinet.errors import FormatError, InputError
from gbinet.evaluation.scores import write_json
from gbinet.formats.reading import read_json
from gbinet.inference.device import pick_device
from gbinet.provenance import maker
from gbinet.scenes.batch import Batch
from gbinet.training import checkpoint
from gbinet.training.progress import line
from gbinet.training.samples import validation_batches
from gbinet.training.trainer import train
from gbinet.training.validate import validate
from gbinet_research.variants import VARIANTS, Budget, Variant, train_config

Tell = Callable[[str], None]


def variant_of(name: str) -> Variant:
    if name not in VARIANTS:
        raise InputError(f"there is no variant '{name}'; choose from {', '.join(VARIANTS)}")
    return VARIANTS[name]


def result_path(out: Path, name: str) -> Path:
    return out / f"{name}.json"


def read_result(path: Path) -> dict[str, object] | None:
    """None where there is none; one that cannot be read is an error, not a reason to train for hours."""
    if not path.is_file():
        return None
    try:
        content = read_json(path)
    except FormatError as error:
        raise InputError(f"{error}; delete it to compute it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a result of a comparison; delete it to compute it again")
    return content


def run_variant(
    name: str,
    budget: Budget,
    out: Path,
    work: Path,
    *,
    minutes: float = 0.0,
    samples: Sequence[Batch] | None = None,
    tell: Tell,
) -> dict[str, object]:
    """Train a variant and score it; `out` gets NAME.json and NAME.safetensors, `work` the checkpoints.

    A command that has only `minutes` stops in time and scores what there is; the next continues. `samples`
    replaces the validation set.
    """
    variant, path = variant_of(name), result_path(out, name)
    stored = read_result(path)
    if stored is not None:
        if stored.get("budget") != budget.to_dict():
            raise InputError(f"{path} was made with another budget: choose another folder, or delete it")
        if stored.get("finished"):
            tell(f"{name}: finished before")
            return stored
    config, folder = train_config(variant, budget, minutes), work / name
    trained = train(
        config,
        folder,
        resume=bool(checkpoint.states(folder)),
        report=lambda r: tell(f"{name}: {line(r)}"),
        network=variant.network,
        loss=variant.loss,
    )
    if not trained.progress.step:
        raise InputError(f"{name}: there was no time for a single step; give it more minutes")
    device = pick_device()
    last = variant.network.from_pretrained(folder / "last.safetensors")
    small = last.save(out / f"{name}.safetensors", half=True)
    model = variant.network.from_pretrained(small).to(device)  # what is scored is what is kept
    began = time.perf_counter()
    given = validation_samples(budget, device) if samples is None else samples
    scored = validate(model, given, variant.most_stages)
    result: dict[str, object] = {
        "variant": name,
        "label": variant.label,
        "budget": budget.to_dict(),
        "finished": trained.finished,
        "trained": {
            "samples": trained.progress.samples,
            "steps": trained.progress.step,
            "seconds": trained.progress.seconds,
            "skipped": trained.progress.skipped,
        },
        "stages": config.network.stages,
        "validation": scored.to_dict(),
        "validation_seconds": time.perf_counter() - began,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else str(device),
        "made_by": maker(model).to_dict(),
    }
    write_json(path, result)
    tell(f"{name}: score {scored.score:.4f}, in {path}")
    return result


def validation_samples(budget: Budget, device: torch.device) -> Sequence[Batch]:
    """The samples that all variants are scored on."""
    config = train_config(VARIANTS["gbinet"], budget)
    config = replace(config, validation_scenes=budget.validation_scenes)
    return validation_batches(config, device, budget.validation_size)
