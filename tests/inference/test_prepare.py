"""A network made ready on a CPU is the plain network: folded, one view at a time, the same numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gbinet import ops
from gbinet.errors import InputError
from gbinet.inference.prepare import fold_batch_norms, is_packed, prepare
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


def test_it_is_the_same_network_and_gives_the_same_depth() -> None:
    model = formula_network()
    ready = prepare(model, "cpu")
    assert type(ready) is GBiNet and ready.ready and not model.ready and not is_packed(ready)
    found, expected = answer(ready), answer(model)
    assert (found.depth == expected.depth).float().mean() > 0.995
    difference = (found.confidence - expected.confidence).abs()
    assert (difference < 1e-3).float().mean() > 0.995


def test_it_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="save the one it was made from"):
        prepare(formula_network(), "cpu").save(tmp_path / "w.safetensors")


def test_more_groups_than_the_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = GBiNet(GBiNetConfig(groups=(32, 32, 16, 8))).eval()
    monkeypatch.setattr(ops, "usable", lambda *tensors: True)
    ready = prepare(model, "cpu")
    monkeypatch.undo()
    assert is_packed(ready)
    assert [weight.packed is None for weight in ready.view_weights] == [True, True, False, False]
    assert (answer(ready).depth == answer(model).depth).float().mean() > 0.995  # as kernels do not serve


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_runs_in_half_precision(dtype: torch.dtype) -> None:
    result = answer(prepare(formula_network(), "cpu", dtype))
    assert torch.isfinite(result.depth).all() and torch.isfinite(result.confidence).all()
    exact = answer(formula_network())
    assert ((result.depth - exact.depth).abs() < 0.5).float().mean() > 0.5  # of a range of 4
