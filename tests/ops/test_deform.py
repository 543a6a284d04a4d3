"""The deformable convolution: it contains the plain one, and it is differentiable in everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from gbinet.model.layers import DeformConv2d
from gbinet.ops.deform import deform_conv2d


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_zero_offsets_are_a_plain_convolution(height: int, width: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(2, 3, height, width, generator=g)
    weight = torch.randn(5, 3, 3, 3, generator=g)
    found = deform_conv2d(features, torch.zeros(2, 18, height, width), weight)
    torch.testing.assert_close(found, F.conv2d(features, weight, padding=1), rtol=1e-4, atol=1e-4)


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 2**31))
def test_whole_offsets_shift_the_map(dy: int, dx: int, seed: int) -> None:
    """All taps moved by (dy, dx): the plain convolution of the shifted map, zero beyond its border."""
    g = torch.Generator().manual_seed(seed)
    features, weight = torch.randn(1, 2, 9, 11, generator=g), torch.randn(4, 2, 3, 3, generator=g)
    offsets = torch.tensor([dy, dx] * 9, dtype=torch.float32)[None, :, None, None].expand(1, 18, 9, 11)
    found = deform_conv2d(features, offsets, weight)
    wide = F.conv2d(F.pad(features, (4, 4, 4, 4)), weight)  # row 0 = the output at row -3
    expected = wide[..., 3 + dy : 12 + dy, 3 + dx : 14 + dx]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@given(st.integers(0, 8), st.integers(0, 2**31))
def test_offsets_are_dy_dx_per_tap_in_row_major_order(tap: int, seed: int) -> None:
    """Only one tap moves: only its term of the sum does."""
    g = torch.Generator().manual_seed(seed)
    features, weight = torch.randn(1, 2, 9, 11, generator=g), torch.randn(4, 2, 3, 3, generator=g)
    offsets = torch.zeros(1, 18, 9, 11)
    offsets[:, 2 * tap], offsets[:, 2 * tap + 1] = 1.0, -2.0  # one down, two to the left
    still = weight.clone()
    still[:, :, tap // 3, tap % 3] = 0
    alone = weight[:, :, tap // 3, tap % 3, None, None]
    moved = F.pad(features, (4, 4, 4, 4))
    row, column = 4 + tap // 3 - 1 + 1, 4 + tap % 3 - 1 - 2
    expected = F.conv2d(features, still, padding=1)
    expected += F.conv2d(moved[..., row : row + 9, column : column + 11], alone)
    torch.testing.assert_close(deform_conv2d(features, offsets, weight), expected, rtol=1e-4, atol=1e-4)


def test_gradients_in_input_offsets_and_weight() -> None:
    g = torch.Generator().manual_seed(0)
    features = torch.randn(1, 2, 4, 5, generator=g, dtype=torch.float64)
    offsets = torch.rand(1, 18, 4, 5, generator=g, dtype=torch.float64) * 0.8 + 0.1  # between pixels
    weight = torch.randn(3, 2, 3, 3, generator=g, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (features, offsets, weight)]
    assert torch.autograd.gradcheck(deform_conv2d, inputs)


def test_a_new_layer_is_a_plain_convolution() -> None:
    layer = DeformConv2d(3, 4)
    features = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(layer(features), F.conv2d(features, layer.weight, padding=1))
    assert sorted(layer.state_dict()) == ["offset.bias", "offset.weight", "weight"]


def test_half_features_move_by_exact_offsets(dtype: torch.dtype) -> None:
    features = torch.randn(1, 4, 16, 300)
    offsets = 3 * torch.randn(1, 18, 16, 300)
    weight = torch.randn(4, 4, 3, 3) / 6
    exact = deform_conv2d(features.double(), offsets.double(), weight.double())
    found = deform_conv2d(features.to(dtype), offsets, weight.to(dtype))
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() < 40 * torch.finfo(dtype).eps + 1e-4


@pytest.mark.parametrize("channels", [16, 64])
def test_inference_does_not_hold_nine_copies(channels: int, live_memory: Callable[[], Any]) -> None:
    layer = DeformConv2d(channels, channels // 2).eval()
    features = torch.randn(2, channels, 64, 80)
    with torch.inference_mode(), live_memory() as memory:
        layer(features)
    assert features.nbytes < memory.peak < 5 * features.nbytes
    assert memory.live < 0.1 * features.nbytes  # and nothing is left behind
