"""Laws of every search strategy, and the dense ones against their formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.model import strategies
from gbinet.model.config import PRESETS, GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.model.strategies import BinarySearch, DenseSearch, strategy_of
from gbinet.model.weights import load

RANGE = torch.tensor([[425.0, 935.0], [1.0, 3.0]])


def one_hot(choice: torch.Tensor, count: int) -> torch.Tensor:
    """Logits [B, D, h, w] of a network that is certain. choice [B, h, w]."""
    return 1e4 * torch.nn.functional.one_hot(choice, count).permute(0, 3, 1, 2).float()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("inverse", [False, True])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_a_certain_network_finds_what_it_chooses(name: str, inverse: bool, seed: int) -> None:
    """Walk down with random choices: every answer is the chosen hypothesis, and lies in window and range."""
    config = GBiNetConfig.from_dict({**PRESETS[name].to_dict(), "inverse_depth": inverse})
    strategy = strategy_of(config)
    random = torch.Generator().manual_seed(seed)
    state = strategy.start(RANGE, 3, 4)
    size = (3, 4)
    for number in range(1, config.stages + 1):
        if number > 1 and config.scale_index(number) != config.scale_index(number - 1):
            size = (2 * size[0], 2 * size[1])
            state = strategy.upsample(state, *size)
        tested = strategy.hypotheses(state)  # [B, D, h, w]
        low, high = strategy.window(state)
        near, far = (RANGE[:, k, None, None] for k in (0, 1))
        slack = 1e-5 * (far - near)
        assert (low >= near - slack).all() and (high <= far + slack).all()
        assert (tested >= low[:, None] - slack[:, None]).all()
        assert (tested <= high[:, None] + slack[:, None]).all()
        choice = torch.randint(tested.shape[1], (2, *size), generator=random)
        logits = one_hot(choice, tested.shape[1])
        probabilities = logits.softmax(1)
        chosen = tested.gather(1, choice[:, None])[:, 0]
        # Bins beyond an end of the binary search's range have no width, so their centre is the end itself.
        inside = (chosen > near + slack) & (chosen < far - slack)
        after = strategy.descend(state, logits)
        for depth in (strategy.depth(after), strategy.expected_depth(state, probabilities)):
            assert ((depth - chosen).abs()[inside] <= (slack.expand_as(chosen))[inside]).all()
        assert torch.allclose(strategy.confidence(state, probabilities), torch.ones(()))
        assert after.stage == number
        state = after


def test_soft_argmin_is_the_mean_and_has_a_gradient() -> None:
    strategy = DenseSearch(PRESETS["dense-linear"])
    state = strategy.start(RANGE, 2, 2)
    logits = torch.zeros(2, 192, 2, 2, requires_grad=True)
    depth = strategy.expected_depth(state, logits.softmax(1))
    assert torch.allclose(depth, RANGE.mean(1)[:, None, None].expand_as(depth))
    depth.sum().backward()
    assert logits.grad is not None
    assert (logits.grad[:, 0] < 0).all() and (logits.grad[:, -1] > 0).all()
    assert not strategy.descend(state, logits).position.requires_grad


def test_half_precision_does_not_reach_the_answer() -> None:
    """In training, states are made under autocast; the answer must still be float32's."""
    strategy = DenseSearch(PRESETS["dense-linear"])
    state = strategy.start(RANGE, 4, 4)
    logits = 3 * torch.randn(2, 192, 4, 4, generator=torch.Generator().manual_seed(0))
    plain = strategy.descend(state, logits).position
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(strategy.descend(state, logits).position, plain)


def test_coarse_to_fine_has_the_published_steps() -> None:
    """48, 32, 8 hypotheses; windows of 192, 64 and 8 of MVSNet's 192 steps; moved to lie in the range."""
    strategy = DenseSearch(PRESETS["coarse-to-fine"])
    state = strategy.start(RANGE[:1], 1, 2)
    widths = []
    for _ in range(3):
        tested = strategy.hypotheses(state)
        widths.append(float(tested[0, -1, 0, 0] - tested[0, 0, 0, 0]))
        low = one_hot(torch.zeros(1, 1, 2, dtype=torch.long), tested.shape[1])  # always the nearest
        state = strategy.descend(state, low)
        assert torch.allclose(strategy.depth(state), torch.tensor(425.0), atol=1e-3)
    assert widths == pytest.approx([510.0, 510 / 3, 510 / 24], rel=1e-4)


def test_confidence_counts_two_hypotheses_on_each_side() -> None:
    strategy = DenseSearch(PRESETS["dense-linear"])
    probabilities = torch.zeros(1, 192, 1, 1)
    probabilities[0, 100:104] = 0.15
    probabilities[0, [90, 113]] = 0.2  # symmetric, so that the answer stays between 101 and 102
    assert float(strategy.confidence(strategy.start(RANGE[:1], 1, 1), probabilities)) == pytest.approx(0.6)


@pytest.mark.parametrize("name", ["dense-linear", "coarse-to-fine"])
def test_dense_networks_run_and_are_saved_like_all_others(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GBiNet(name).eval()
    images = torch.rand(1, 2, 3, 36, 52)
    pose = torch.eye(4).repeat(1, 2, 1, 1)
    pose[:, 1, 0, 3] = 30
    K = torch.tensor([[60.0, 0, 26], [0, 60.0, 18], [0, 0, 1]]).repeat(1, 2, 1, 1)
    inputs = (images, Camera(K, pose, 52, 36), RANGE[:1])
    with torch.no_grad():
        result = model(*inputs, keep_stages=True)
        again = load(model.save(tmp_path / "w.safetensors"))(*inputs)
    assert result.depth.shape == result.confidence.shape == (1, 36, 52)
    assert ((result.depth >= 425) & (result.depth <= 935)).all()
    assert ((result.confidence > 0) & (result.confidence <= 1)).all()
    assert [s.logits.shape[1] for s in result.stages] == list(model.config.hypotheses)
    assert torch.equal(again.depth, result.depth)
    with pytest.raises(InputError, match="at most"):
        model(*inputs, stages=9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strategy": "guess"}, "unknown strategy"),
        ({"hypotheses": (4,)}, "bins"),
        ({"strategy": "dense"}, "each stage"),
        ({"strategy": "dense", "hypotheses": (1,), "windows": (1.0,), "stages": 1}, "2 hypotheses"),
        ({"strategy": "dense", "hypotheses": (4,), "windows": (0.5,), "stages": 1}, "first of them 1"),
        ({"strategy": "dense", "hypotheses": (4,), "windows": (1.0,), "stages": 2}, "has 1 stages"),
    ],
)
def test_impossible_strategies_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GBiNetConfig.from_dict(values)


def test_a_fifth_strategy_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cautious(BinarySearch):
        """Goes down into the middle bins, whatever the network says."""

        def descend(self, state, logits):  # type: ignore[no-untyped-def]
            return super().descend(state, torch.zeros_like(logits).index_fill_(1, torch.tensor([1]), 1.0))

    monkeypatch.setitem(strategies.STRATEGIES, "cautious", Cautious)
    model = GBiNet(GBiNetConfig(strategy="cautious", stages=2))
    state = model.strategy.start(RANGE, 2, 2)
    state = model.strategy.descend(state, torch.randn(2, 4, 2, 2))
    assert (state.cell == 1).all()
