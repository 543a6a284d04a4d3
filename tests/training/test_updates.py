"""The update modes agree where they must, and geometry keeps its precision."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plane_scenes import PlaneSource

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.model import search
from gbinet.model.gbinet import GBiNet, Stage
from gbinet.model.geometry import sources_from_reference
from gbinet.ops.warp import source_positions
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import Processes
from gbinet.training.graph import eager_step
from gbinet.training.loss import confidence_loss, refinement_loss, stage_loss
from gbinet.training.optimise import Optimiser
from gbinet.training.trainer import initial_weights
from gbinet.training.updates import Step, update


def gradients(mode: str, config: TrainConfig, batch: Batch) -> tuple[dict[str, torch.Tensor], GBiNet]:
    """Sum of the gradients of one batch, and the network with its new statistics."""
    torch.manual_seed(0)
    model = GBiNet(config.network).train()
    update(mode, model, batch, Step(config, config.network.stages), lambda: None)  # type: ignore[arg-type]
    return {k: p.grad for k, p in model.named_parameters() if p.grad is not None}, model


@pytest.mark.parametrize("stages", [3, 8])
@pytest.mark.parametrize("encode_twice", [False, True])
def test_shared_encoder_gives_the_gradients_of_accumulate(
    planes: PlaneSource, tiny: TrainConfig, stages: int, encode_twice: bool
):
    config = replace(tiny, readout_weight=0.3, stage_weights=(2.0, 1.0, 0.5), encode_twice=encode_twice)
    config = config.with_network(stages=stages)
    batch = planes.batch(0, 2)
    together, model_a = gradients("accumulate", config, batch)
    shared, model_b = gradients("shared-encoder", config, batch)
    assert set(together) == set(shared)
    assert any(k.startswith("encoder") for k in shared)
    for name, expected in together.items():
        scale = float(expected.abs().max()) + 1e-6
        assert float((shared[name] - expected).abs().max()) < 2e-4 * scale, name
    for (name, a), (_, b) in zip(model_a.named_buffers(), model_b.named_buffers(), strict=True):
        assert torch.equal(a, b), name  # the same batch statistics were seen


def test_choosers_context_and_refiner_learn_with_the_network(planes: PlaneSource, tiny: TrainConfig) -> None:
    config = replace(tiny, recover=True).with_network(
        stages=5,
        scale_of_stage=(0, 1, 1, 2, 3),
        bins=6,
        first_bins=16,
        inverse_depth=True,
        edge_cells=6,
        smoothing=((1, 6), (1, 6), (1, 6), (2, 24)),
        choice_widths=(16, 8, 8),
        choice_again=True,
        context=True,
        regulariser_width=(16, 8, 8, 8),
        refiner=True,
        refiner_sides=True,
        readout="refined",
        confidence="learned",
    )
    batch = planes.batch(0, 2)
    together, model = gradients("accumulate", config, batch)
    shared, _ = gradients("shared-encoder", config, batch)
    parts = {
        "choosers.",
        "choice_weights.",
        "again_choosers.",
        "again_weights.",
        "regularisers.0.context.",
        "refiner.",
        "encoder.",
    }
    assert all(any(name.startswith(part) for name in together) for part in parts)
    assert set(together) == set(shared) == {name for name, _ in model.named_parameters()}
    for name, expected in together.items():
        scale = float(expected.abs().max()) + 1e-6
        assert float((shared[name] - expected).abs().max()) < 5e-4 * scale, name


def test_per_stage_steps_once_per_stage(planes: PlaneSource, tiny: TrainConfig):
    model = GBiNet(tiny.network).train()
    steps = []
    update("per-stage", model, planes.batch(0, 2), Step(tiny, 3), lambda: steps.append(1))
    assert len(steps) == 3


def test_per_stage_gradients_add_up_to_accumulate(planes: PlaneSource, tiny: TrainConfig):
    """Without optimiser steps between the stages, the published way sums the same gradients."""
    batch = planes.batch(3, 2)
    together, _ = gradients("accumulate", tiny, batch)
    published, _ = gradients("per-stage", tiny, batch)
    for name, expected in together.items():
        scale = float(expected.abs().max()) + 1e-6
        assert float((published[name] - expected).abs().max()) < 2e-4 * scale, name


@pytest.mark.parametrize("mode", ["per-stage", "shared-encoder"])
def test_encoding_twice_changes_nothing(planes: PlaneSource, tiny: TrainConfig, mode: str):
    batch = planes.batch(1, 2)
    once, model_a = gradients(mode, replace(tiny, encode_twice=False), batch)
    twice, model_b = gradients(mode, replace(tiny, encode_twice=True), batch)
    for name, expected in once.items():
        scale = float(expected.abs().max()) + 1e-6
        assert float((twice[name] - expected).abs().max()) < 2e-4 * scale, name
    for (name, a), (_, b) in zip(model_a.named_buffers(), model_b.named_buffers(), strict=True):
        assert torch.equal(a, b), name  # statistics were learnt once
    assert {m.momentum for m in model_b.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {0.1}


def graph_memory(mode: str, config: TrainConfig, batch: Batch) -> int:
    """Largest sum of bytes that autograd has saved for backward at one time (weights included)."""
    model = GBiNet(config.network).train()
    held: dict[int, int] = {}  # storage -> bytes
    counts: dict[int, int] = {}
    peak = 0

    class Saved:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            self.key = tensor.untyped_storage().data_ptr()
            counts[self.key] = counts.get(self.key, 0) + 1
            held[self.key] = tensor.untyped_storage().nbytes()
            nonlocal peak
            peak = max(peak, sum(held.values()))

        def __del__(self) -> None:
            counts[self.key] -= 1
            if not counts[self.key]:
                held.pop(self.key, None)

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        update(mode, model, batch, Step(config, config.network.stages), lambda: None)  # type: ignore[arg-type]
    return peak


def test_encoding_twice_does_not_hold_encoder_and_stages_at_once(planes: PlaneSource, tiny: TrainConfig):
    batch = planes.batch(1, 2)
    config = replace(tiny, encode_twice=True).with_network(stages=8)
    twice = {mode: graph_memory(mode, config, batch) for mode in ("per-stage", "shared-encoder")}
    once = graph_memory("shared-encoder", replace(config, encode_twice=False), batch)
    together = graph_memory("accumulate", config, batch)
    assert max(twice.values()) < 0.5 * together
    assert max(twice.values()) < 0.6 * once < 0.6 * together
    assert max(twice.values()) < 1.15 * min(twice.values())


def test_geometry_is_float32_under_autocast(planes: PlaneSource):
    batch = planes.batch(0, 1)
    grid = search.SearchGrid()
    state = search.start(grid, batch.depth_range, 64, 64)

    def positions() -> torch.Tensor:
        transforms = sources_from_reference(batch.cameras)
        coarse = search.descend(state, torch.full((1, 64, 64), 2))
        fine = search.upsample(coarse, 128, 128)
        return source_positions(transforms[:, 0], search.hypotheses(fine))

    plain = positions()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = positions()
    assert mixed.dtype == torch.float32
    assert torch.equal(plain, mixed)


def test_mixed_precision_is_close_to_float32(tiny: TrainConfig):
    batch = PlaneSource(128, 128).batch(0, 2)  # in smaller images batch norm sees too few pixels to compare
    plain, _ = gradients("shared-encoder", tiny.with_network(stages=1), batch)
    mixed, _ = gradients("shared-encoder", replace(tiny.with_network(stages=1), precision="bfloat16"), batch)
    assert all(g.dtype == torch.float32 for g in mixed.values())
    names = [k for k in plain if k.startswith("regularisers")]
    a, b = (torch.cat([g[k].flatten() for k in names]) for g in (plain, mixed))
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.95


def refining(tiny: TrainConfig) -> TrainConfig:
    smoothing = ((1, 6), (1, 6), (1, 6), (2, 24))
    network = tiny.with_network(stages=8, smoothing=smoothing, refiner=True, readout="refined")
    return replace(network, update="refiner", readout_weight=0.0)


def test_only_the_refiner_learns_and_its_loss_falls(planes: PlaneSource, tiny: TrainConfig) -> None:
    config = refining(tiny)
    model = initial_weights(config, resumed=True).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trained = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.Adam(trained, 3e-3)
    batch = planes.batch(0, 2)
    errors = []

    def optimise() -> None:
        assert all(p.grad is not None for p in trained)
        adam.step()
        adam.zero_grad()

    for _ in range(12):
        measures = update("refiner", model, batch, Step(config, config.network.stages), optimise)
        error, pixels = measures[-1, -2:].tolist()
        errors.append(error / pixels)
    assert errors[-1] < 0.97 * errors[0]
    assert model.training
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed and all(k.startswith("refiner.") for k in changed)


def test_a_run_may_start_from_weights_with_or_without_a_refiner(tiny: TrainConfig, tmp_path: Path) -> None:
    config = refining(tiny)
    with pytest.raises(InputError, match="--init"):
        initial_weights(config)
    without = replace(config.with_network(readout="smooth"), update="shared-encoder")
    without = without.with_network(refiner=False)
    plain = initial_weights(without)
    with_refiner = initial_weights(replace(config, init=plain.save(tmp_path / "plain.safetensors")))
    assert with_refiner.refiner is not None
    torch.nn.init.normal_(with_refiner.refiner.output.weight)
    saved = with_refiner.save(tmp_path / "refiner.safetensors")
    again = initial_weights(replace(config, init=saved))
    dropped = initial_weights(replace(without, init=saved))
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in with_refiner.state_dict().items())
    assert dropped.refiner is None
    assert all(torch.equal(v, plain.state_dict()[k]) for k, v in dropped.state_dict().items())


def test_averaged_weights_follow_the_refiner_alone(planes: PlaneSource, tiny: TrainConfig) -> None:
    config = replace(refining(tiny), ema=0.5)
    model = initial_weights(config, resumed=True).train()
    optimiser = Optimiser(model, config, Processes())
    optimiser.schedule(1e-2, 100)
    eager_step(model, optimiser, planes.batch(0, 2), Step(config, config.network.stages))
    assert optimiser.averaged is not None
    for (name, own), averaged in zip(model.named_parameters(), optimiser.averaged.parameters(), strict=True):
        assert torch.equal(own, averaged) != name.startswith("refiner.output"), name


def test_a_refiner_is_trained_at_full_size_only(tiny: TrainConfig) -> None:
    with pytest.raises(InputError, match="full size"):
        refining(tiny).with_network(stages=6)
    with pytest.raises(InputError, match="--refiner"):
        replace(tiny, update="refiner")
    with pytest.raises(InputError, match="grow"):
        replace(refining(tiny), grow_stages=True)


def test_recovered_pixels_count_again() -> None:
    """A pixel that was masked counts where its depth lies in a bin, if it may recover."""
    state = search.start(search.SearchGrid(), torch.tensor([[425.0, 935.0]]), 4, 6)
    depth = torch.full((1, 4, 6), 600.0)
    depth[0, 0, 0] = 0  # unknown
    depth[0, 0, 1] = 2000  # in no bin
    logits = torch.zeros(1, 4, 4, 6)
    stage = Stage(state, logits, search.descend(state, logits.argmax(1)))
    masked = torch.zeros(1, 4, 6, dtype=torch.bool)
    assert int(stage_loss(stage, depth, masked, Processes()).valid.sum()) == 0
    assert int(stage_loss(stage, depth, masked, Processes(), recover=True).valid.sum()) == 22


def test_refinement_counts_known_depths_in_the_range_in_cells() -> None:
    grid = search.SearchGrid(inverse=True)
    ends = torch.tensor([[425.0, 935.0]])
    depth = torch.tensor([[[500.0, 700.0, 0.0, 2000.0]]])
    places = grid.to_position(depth.clamp(min=1), ends) * grid.cells(7)
    state = search.SearchState(grid, ends, 7, places.int(), places + torch.tensor([0.0, 1.5, 9.0, 9.0]))
    loss, (total, pixels) = refinement_loss(state, depth, Processes())
    assert float(pixels) == 2
    assert float(loss) == pytest.approx(math.log(1 + 2 * 1.5) / 2, abs=1e-3)
    assert float(total) == pytest.approx(2 * float(loss))


@pytest.mark.parametrize("complete", [False, True])
def test_confidence_is_wrong_where_nothing_is(complete: bool) -> None:
    """Right answers raise it, wrong ones lower it; depth 0 counts only where all depths are known."""
    grid = search.SearchGrid(inverse=True)
    ends = torch.tensor([[425.0, 935.0]])
    depth = torch.tensor([[[500.0, 700.0, 0.0, 2000.0]]])
    answer = torch.tensor([[[500.0, 500.0, 500.0, 930.0]]])
    places = grid.to_position(answer, ends) * grid.cells(7)
    state = search.SearchState(grid, ends, 7, places.int(), places)
    K = torch.tensor([[1000.0, 0, 2], [0, 1000, 0.5], [0, 0, 1]]).expand(1, 2, 3, 3)
    pose = torch.eye(4).repeat(1, 2, 1, 1)
    pose[0, 1, 0, 3] = 100
    logit = torch.zeros(1, 1, 1, 4, requires_grad=True)
    known = torch.tensor([complete])
    loss = confidence_loss(logit, state, depth, Camera(K, pose, 4, 1), Processes(), known)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logit.grad is not None
    expected = [-1, 1, 1, 1] if complete else [-1, 1, 0, 1]
    assert logit.grad.sign().flatten().tolist() == expected
