"""Checkpoints: everything that a run needs to continue as if it had not stopped. No file can execute code.

A checkpoint is a folder `state-<step>` of safetensors files and one JSON file. It is written under another
name and renamed when complete; older ones are removed afterwards, so there is always a complete one.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gbinet.errors import FormatError, GBiNetError, InputError, flag
from gbinet.formats.atomic import atomic_path
from gbinet.formats.reading import read_json
from gbinet.model.gbinet import GBiNet
from gbinet.training.config import FREE_ON_RESUME, TrainConfig
from gbinet.training.optimise import Optimiser

FORMAT = 2
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class TrainProgress:
    """How far a run has got."""

    step: int = 0  # batches done
    samples: int = 0  # samples seen, by all processes
    seconds: float = 0.0  # of training, over all commands
    skipped: float = 0.0  # batches without a finite gradient
    best: float | None = None  # best score on the validation set
    best_step: int = 0  # the step with that score


def save(
    out: Path, model: GBiNet, optimiser: Optimiser, config: TrainConfig, progress: TrainProgress
) -> Path:
    """Write `state-<step>` into the folder of the run; returns its path."""
    target = out / f"state-{progress.step:08d}"
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    state = {names[p]: s for p, s in optimiser.adam.state.items() if s}
    record = {
        "format": FORMAT,
        "config": config.to_dict(),
        "progress": asdict(progress),
        "adam_steps": {k: float(s["step"]) for k, s in state.items()},
    }
    if target.exists():  # a checkpoint of this step: only the record can have changed
        with atomic_path(target / "state.json") as temporary:
            temporary.write_text(json.dumps(record, indent=1))
        return target
    with atomic_path(target) as temporary:
        temporary.mkdir()
        model.save(temporary / "weights.safetensors")
        if optimiser.averaged is not None:
            optimiser.averaged.save(temporary / "averaged.safetensors")
        for moment in _MOMENTS:  # one file each, of the size of the weights
            _write(temporary / f"{moment}.safetensors", {k: s[moment] for k, s in state.items()})
        _write(temporary / "random.safetensors", _random_states())
        (temporary / "state.json").write_text(json.dumps(record, indent=1))
    for older in states(out):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)
    return target


def states(out: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    pattern = re.compile(r"state-\d{8,}")
    return sorted(
        p for p in out.glob("state-*") if pattern.fullmatch(p.name) and (p / "state.json").is_file()
    )


def newest(out: Path) -> Path:
    checkpoints = states(out)
    if not checkpoints:
        raise InputError(f"{out} holds no checkpoint to resume from; omit --resume to start a new run")
    return checkpoints[-1]


def resumed_config(out: Path) -> TrainConfig:
    """The options that a run was started with."""
    return TrainConfig.from_dict(_record(newest(out))["config"])  # type: ignore[arg-type]


def check_same_run(state: Path, config: TrainConfig) -> None:
    """Refuse to resume with options that would make another run than the checkpoint's."""
    # Options that were added since the run was started have their defaults in it.
    defaults = _flat(TrainConfig().to_dict())
    stored, now = defaults | _flat(_record(state)["config"]), _flat(config.to_dict())
    changed = [
        f"{flag(k)} (was {stored.get(k)}, now {now.get(k)})"
        for k in {**stored, **now}
        if json.dumps(stored.get(k)) != json.dumps(now.get(k)) and k not in FREE_ON_RESUME
    ]
    if changed:
        raise InputError(
            f"a resumed run keeps its options, but these differ: {', '.join(changed)}; "
            "omit them, or start a new run with --init"
        )


def _flat(options: object) -> dict[str, object]:
    """The fields of a run and of its network in one dictionary, as the command line has them."""
    if not isinstance(options, dict) or not isinstance(options.get("network"), dict):
        raise InputError("the checkpoint's options cannot be read: start a new run with --init")
    return {**options, **options["network"], "network": None}


def load(state: Path, model: GBiNet, optimiser: Optimiser) -> TrainProgress:
    """Restore network and optimiser from a checkpoint, in place."""
    record = _record(state)
    _fill(model, _read(state / "weights.safetensors"), state)
    if optimiser.averaged is not None:
        _fill(optimiser.averaged, _read(state / "averaged.safetensors"), state)
    parameters = dict(model.named_parameters())
    moments = {m: _read(state / f"{m}.safetensors") for m in _MOMENTS}
    try:
        for name, steps in record["adam_steps"].items():  # type: ignore[attr-defined]
            parameter = parameters[name]
            restored = {m: torch.empty_like(parameter).copy_(moments[m][name]) for m in _MOMENTS}
            step = torch.tensor(float(steps), dtype=torch.float32, device=parameter.device)
            optimiser.adam.state[parameter] = {"step": step, **restored}
        progress = TrainProgress(**record["progress"])  # type: ignore[arg-type]
    except (KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise FormatError(state, f"the checkpoint does not fit this run: {error}") from error
    optimiser.skipped.fill_(progress.skipped)
    _restore_random_states(_read(state / "random.safetensors"))
    return progress


def _fill(model: nn.Module, tensors: dict[str, Tensor], state: Path) -> None:
    """Copy in place, to keep the layout of the weights and the shared memory of the statistics."""
    current = model.state_dict()
    if set(current) != set(tensors) or any(v.shape != tensors[k].shape for k, v in current.items()):
        raise FormatError(state, "the checkpoint is of another network than this run's configuration says")
    with torch.no_grad():
        for key, value in current.items():
            value.copy_(tensors[key])


def _record(state: Path) -> dict[str, object]:
    path = state / "state.json"
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise FormatError(
            path,
            f"is not a checkpoint of layout {FORMAT}: another version of gbinet wrote it, and it cannot be "
            "resumed. Its weights still load: start a new run with --init and its last.safetensors",
        )
    if not {"config", "progress", "adam_steps"} <= set(record):
        raise FormatError(path, "a part of the checkpoint is missing")
    return record


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, path)


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise FormatError(path, f"cannot be read: {error}") from error


# Samples depend on the seed and the step alone (samples.py): only torch's own generators have to be saved.


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random_states(states: dict[str, Tensor]) -> None:
    try:
        torch.set_rng_state(states["cpu"])
        if torch.cuda.is_available() and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise GBiNetError(f"the checkpoint's random states cannot be restored: {error}") from error
