"""What a variant costs: memory and time of a depth map and of a training step, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from gbinet.formats.atomic import write_json
from gbinet.inference.device import is_out_of_memory, pick_device
from gbinet.inference.prepare import prepare
from gbinet.inference.resources import Resources, measure, views_in_a_row
from gbinet.model.gbinet import GBiNet
from gbinet.provenance import software
from gbinet.scenes.batch import Batch, collate
from gbinet.training.distributed import Processes
from gbinet.training.graph import StepRunner, eager_step
from gbinet.training.optimise import Optimiser, to_channels_last
from gbinet.training.updates import Step
from gbinet_research.results import COSTS, Results, check_costs, cost_key, read_result
from gbinet_research.run import Tell
from gbinet_research.variants import Budget, Variant, train_config


def measure_costs(
    variants: Sequence[Variant], budget: Budget, out: Path, tell: Tell, repeat: int = 5
) -> None:
    """Write costs.json; what is measured already stays. Run it alone: others on the GPU change the times."""
    path = out / COSTS
    costs = read_result(path) or {}
    device = pick_device()
    where = torch.cuda.get_device_name() if device.type == "cuda" else str(device)
    given = budget.to_dict()
    check_costs(path, costs, given, where)
    for variant in variants:
        before = costs.get(variant.name, {})
        if before and not any("error" in before.get(part, {}) for part in PARTS):
            continue
        # Seeds, and for depth maps how it was trained, do not matter: one of several that are alike tells.
        known = Results({}, {k: row for k, row in costs.items() if k != variant.name}, {})
        parts = [p for p in PARTS if known.cost(variant.name, p, "milliseconds") is None]
        if variant.weights_of and "training" in parts:
            parts.remove("training")
        if not parts:
            continue
        figures = {part: _guarded(partial(PARTS[part], variant, budget, device, repeat)) for part in parts}
        made = {"key": cost_key(given), "design": variant.design, "device": where, "measured_by": software()}
        costs[variant.name] = {**figures, **made}
        write_json(path, costs)
        tell(f"{variant.name}: {figures}")


def _guarded(run: Callable[[], Resources]) -> dict[str, object]:
    """What was measured, or why it could not be: the other measurements must not be lost."""
    on_gpu = torch.cuda.is_available()
    try:
        found = asdict(run())
    except (RuntimeError, MemoryError) as error:
        return {"error": "not enough memory" if is_out_of_memory(error) else str(error)}
    finally:
        if on_gpu:
            torch.cuda.empty_cache()
    if not on_gpu:
        found["peak_mib"] = None  # a process that has done other things before cannot tell
    return found


@torch.inference_mode()
def _network(variant: Variant, budget: Budget, device: torch.device, repeat: int) -> Resources:
    """As papers measure: the trained network in float32, all views encoded at once."""
    torch.manual_seed(0)
    model = variant.network(variant.config).to(device).eval()
    return _depth_map(model, budget, device, repeat)


@torch.inference_mode()
def _engine(variant: Variant, budget: Budget, device: torch.device, repeat: int) -> Resources:
    """As `gbinet depth` runs it: folded, half precision on a GPU, fused kernels where there are any."""
    torch.manual_seed(0)
    return _depth_map(prepare(variant.network(variant.config), device), budget, device, repeat)


def _depth_map(model: GBiNet, budget: Budget, device: torch.device, repeat: int) -> Resources:
    width, height = budget.validation_size
    inputs = views_in_a_row(budget.views, width, height, device)
    milliseconds, peak = measure(lambda: model(*inputs), device, repeat)
    return Resources(width, height, budget.views, milliseconds, peak)


def _training(variant: Variant, budget: Budget, device: torch.device, repeat: int) -> Resources:
    """A whole step on images at random: their content changes neither memory nor time. The peak is of a step
    launched piece by piece, the time of a recorded one where that is possible: as training runs it."""
    config = train_config(variant, budget, device)
    torch.manual_seed(0)
    model = variant.network(variant.config).to(device).train()
    to_channels_last(model)
    optimiser = Optimiser(model, config, Processes())
    optimiser.schedule(1e-4, 0)
    images, cameras, limits = views_in_a_row(budget.views, budget.width, budget.height, device)
    one = Batch(
        images=images,
        cameras=cameras,
        depth_range=limits,
        depth=torch.full((1, budget.height, budget.width), 600.0, device=device),
        mask=torch.ones(1, budget.height, budget.width, dtype=torch.bool, device=device),
        names=("random",),
    )
    batch = collate([one] * budget.batch_size)
    step = Step(config, config.network.stages, loss=variant.loss)
    _, peak = measure(lambda: eager_step(model, optimiser, batch, step), device, 1)
    runner = StepRunner(model, optimiser)
    milliseconds, _ = measure(lambda: runner(batch, step), device, repeat)
    return Resources(budget.width, budget.height, budget.views, milliseconds, peak)


PARTS: dict[str, Callable[[Variant, Budget, torch.device, int], Resources]] = {
    "network": _network,
    "engine": _engine,
    "training": _training,
}
