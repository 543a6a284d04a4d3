"""The engine on a CPU is the plain network: folded, one view encoded at a time, the same numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gbinet.errors import InputError
from gbinet.inference.engine import Engine
from gbinet.inference.fold import fold_batch_norms
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from formula_network import answer, formula_input, formula_network


@torch.inference_mode()
def test_folding_changes_nothing_but_rounding() -> None:
    model = formula_network()
    folded = fold_batch_norms(model)
    images, _, _ = formula_input()
    for found, expected in zip(folded.encode(images), model.encode(images), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for scale, groups in enumerate(model.config.groups):
        volume = torch.randn(1, groups, 4, 16, 24)
        expected = model.regularisers[scale](volume)
        size = float(expected.abs().max())
        assert (folded.regularisers[scale](volume) - expected).abs().max() < 1e-5 * max(size, 1)
        weight = model.view_weights[scale](volume)
        torch.testing.assert_close(folded.view_weights[scale](volume), weight, rtol=1e-5, atol=1e-5)


def test_folding_leaves_the_original_alone_and_has_no_norms_left() -> None:
    model = formula_network()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    folded = fold_batch_norms(model)
    assert not any("BatchNorm" in type(m).__name__ for m in folded.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(p.requires_grad for p in folded.parameters())


def test_the_engine_gives_the_networks_depth() -> None:
    model = formula_network()
    found, expected = answer(Engine(model, "cpu")), answer(model)
    assert (found.depth == expected.depth).float().mean() > 0.995
    difference = (found.confidence - expected.confidence).abs()
    assert (difference < 1e-3).float().mean() > 0.995


def test_an_engine_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="save the network it was made from"):
        Engine(formula_network(), "cpu").save(tmp_path / "w.safetensors")


def test_more_groups_than_the_fused_kernel_takes() -> None:
    torch.manual_seed(0)
    model = GBiNet(GBiNetConfig(groups=(32, 32, 16, 8))).eval()
    engine = Engine(model, "cpu")
    assert [packed is None for packed in engine.packed_view_weights] == [True, True, False, False]
    assert (answer(engine).depth == answer(model).depth).float().mean() > 0.995


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_engine_runs_in_half_precision(dtype: torch.dtype) -> None:
    result = answer(Engine(formula_network(), "cpu", dtype))
    assert torch.isfinite(result.depth).all() and torch.isfinite(result.confidence).all()
    exact = answer(formula_network())
    assert ((result.depth - exact.depth).abs() < 0.5).float().mean() > 0.5  # of a range of 4
