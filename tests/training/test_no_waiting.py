"""A training step can be recorded as a CUDA graph: nothing in it asks the device or brings numbers to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig, UpdateMode
from gbinet.training.updates import Step, update

# What waits for the device (its answer has a size or a value that Python reads) or copies numbers to it.
WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::lift_fresh",
    "aten::equal",
}
EVERYTHING = GBiNetConfig(
    bins=6,
    first_bins=8,
    inverse_depth=True,
    edge_cells=6,
    smoothing=((1, 6), (1, 6), (2, 12), (3, 32)),
    stages=7,
    regulariser_width=(4, 4, 2, 2),
    context=True,
    choice_widths=(4, 4, 4),
    choice_again=True,
    refiner=True,
    refiner_sides=True,
    confidence="learned",
    readout="refined",
)


class NoWaiting(TorchDispatchMode):
    """Fails at the operation that a recording could not hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        assert name not in WAITING, f"{name} in a training step"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", ["shared-encoder", "accumulate", "per-stage"])
@pytest.mark.parametrize("design", [EVERYTHING, GBiNetConfig()], ids=["everything", "published"])
def test_a_training_step_never_waits(make_tiny_scene: Any, mode: UpdateMode, design: GBiNetConfig) -> None:
    scene = make_tiny_scene(3, 64, 64)
    batch = Batch(
        scene.images[None],
        scene.cameras[None],
        torch.tensor([[scene.depth_range.near, scene.depth_range.far]]),
        scene.depth[None],
        torch.ones(1, 64, 64, dtype=torch.bool),
        ("tiny/0",),
    )
    config = TrainConfig(network=replace(design), width=64, height=64, recover=True, total_steps=2)
    torch.manual_seed(0)
    model = GBiNet(design)
    with NoWaiting():
        measures = update(mode, model, batch, Step(config, design.stages), lambda: None)
    assert measures.isfinite().all()
