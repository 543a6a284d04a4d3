"""The functions for CPUs give the same results as the plain operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gbinet.camera import Camera
from gbinet.inference.prepare import fold_batch_norms
from gbinet.model.cost_volume import ViewWeight
from gbinet.model.geometry import sources_from_reference
from gbinet.ops import conv, conv_cpu, cost_volume, cost_volume_cpu, deform, usable_on_cpu
from gbinet.ops.bilinear_cpu import BORDER, sample, table
from gbinet.ops.warp import at_scale

sizes = st.integers(1, 9)
seeds = st.integers(0, 2**31)


@given(sizes, sizes, st.integers(1, 5), seeds)
@torch.inference_mode()
def test_sampling_is_bilinear_and_zero_outside(height: int, width: int, channels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(channels, height, width, generator=generator)
    around = torch.rand(2, 300, generator=generator) * 3 - 1  # in the map, beside it and far beside it
    x, y = around[0] * width, around[1] * height
    x[:8], y[:8] = torch.arange(8.0) - 1, torch.arange(8.0) / 2  # on borders and centres
    x[8], y[8], x[9], y[9] = -1e6, 1.0, float("inf"), float("-inf")
    grid = torch.stack([x * 2 / width - 1, y * 2 / height - 1], dim=-1)
    grid[9] = -1e6  # grid_sample knows no infinity
    expected = F.grid_sample(features[None], grid[None, None], align_corners=False)[0, :, 0].T
    found = sample(table(features), x + BORDER, y + BORDER)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@torch.inference_mode()
def test_positions_that_are_nan_give_nan() -> None:
    x = torch.tensor([float("nan"), 1.0, 1.0]) + BORDER
    y = torch.tensor([1.0, float("nan"), 0.5]) + BORDER
    found = sample(table(torch.ones(2, 3, 4)), x, y)
    assert bool(found[:2].isnan().all()) and found[2].tolist() == [1, 1]


@torch.inference_mode()
def test_sampling_of_a_map_with_more_pixels_than_float32_counts() -> None:
    width, height = (1 << 23) + 9, 2
    features = torch.zeros(1, height, width)
    features[0, 1, -1] = 5
    at = torch.tensor([float(width) - 0.5 + BORDER, float(width) - 1.5 + BORDER])
    found = sample(table(features), at, torch.full((2,), 1.5 + BORDER))
    assert found[:, 0].tolist() == [5, 0]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3), seeds)
@torch.inference_mode()
def test_deformable_convolution(height: int, width: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, 3, height, width, generator=generator)
    offsets = 3 * torch.randn(batch, 18, height, width, generator=generator)
    weight = torch.randn(5, 3, 3, 3, generator=generator)
    assert usable_on_cpu(features)
    found = deform.deform_conv2d(features, offsets, weight)
    expected = deform.deform_conv2d_plain(features, offsets, weight)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def view_weight() -> nn.Module:
    torch.manual_seed(0)
    return fold_batch_norms(ViewWeight(4))


def views_and_depth(scene: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    """Features of three views, two samples, the last view smaller; transforms; hypotheses, some of them
    behind the sources."""
    generator = torch.Generator().manual_seed(3)
    sizes = [(24, 32), (24, 32), (20, 28)]
    views = [torch.randn(2, 8, *size, generator=generator) for size in sizes]
    transforms = at_scale(sources_from_reference(Camera.stack([scene.cameras, scene.cameras])), 1)
    depth = 3 + torch.rand(2, 5, 24, 32, generator=generator)
    depth[:, 0] = -2
    return views, transforms, depth


@pytest.mark.parametrize("band", [1, 5000, 1 << 20])
@torch.inference_mode()
def test_cost_volume(
    make_tiny_scene: Callable[..., Any],
    view_weight: nn.Module,
    band: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    views, transforms, depth = views_and_depth(make_tiny_scene(3, 24, 32))
    monkeypatch.setattr(cost_volume_cpu, "BAND_VALUES", band)
    found = cost_volume.cost_volume(views, transforms, depth, view_weight, 4)
    expected = cost_volume.cost_volume_plain(views, transforms, depth, view_weight, 4)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert float(expected.abs().max()) > 0.1


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.booleans(), seeds)
@torch.inference_mode()
def test_convolution_with_one_output(
    inputs: int, depth: int, height: int, width: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = nn.Conv3d(inputs, 1, 3, padding=1, bias=bias)
    volume = torch.randn(2, inputs, depth, height, width)
    found = conv.conv_plain(volume, layer)
    assert found.shape == (2, 1, depth, height, width)
    torch.testing.assert_close(found, layer(volume), rtol=1e-4, atol=1e-4)


@given(st.integers(1, 2 * conv_cpu.FEW_OUTPUTS), st.integers(1, 6), st.integers(1, 6), st.booleans(), seeds)
@torch.inference_mode()
def test_transposed_convolution(outputs: int, height: int, width: int, bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = nn.ConvTranspose3d(5, outputs, 3, (1, 2, 2), padding=1, output_padding=(0, 1, 1), bias=bias)
    volume = torch.randn(2, 5, 3, height, width)
    torch.testing.assert_close(conv.conv_transpose_plain(volume, layer), layer(volume), rtol=1e-4, atol=1e-4)


def test_gradients_and_the_switch_select_the_plain_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.zeros(1)
    assert not usable_on_cpu(values)  # gradients are on
    with torch.no_grad():
        assert usable_on_cpu(values) and not usable_on_cpu(values, values.to("meta"))
        assert not usable_on_cpu(values.double())
        monkeypatch.setenv("GBINET_KERNELS", "plain")
        assert not usable_on_cpu(values)


def test_results_do_not_depend_on_the_number_of_threads(
    make_tiny_scene: Callable[..., Any], view_weight: nn.Module
) -> None:
    """Of what is large enough to be shared among threads."""
    generator = torch.Generator().manual_seed(0)
    scene = make_tiny_scene(2, 160, 224)
    maps = [torch.randn(1, 8, 160, 224, generator=generator) for _ in range(2)]
    transforms = sources_from_reference(scene.cameras[None])
    depth = 3 + torch.rand(1, 3, 160, 224, generator=generator)
    offsets = torch.randn(1, 18, 160, 224, generator=generator)
    weight = torch.randn(8, 8, 3, 3, generator=generator)
    last = nn.Conv3d(8, 1, 3, padding=1, bias=False)
    up = nn.ConvTranspose3d(8, 8, 3, (1, 2, 2), padding=1, output_padding=(0, 1, 1), bias=False)
    rounded = nn.Conv3d(8, 8, 3, padding=1).bfloat16()

    def results() -> list[Tensor]:
        volume = torch.randn(1, 8, 3, 160, 224, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            return [
                cost_volume.cost_volume(maps, transforms, depth, view_weight, 4),
                deform.deform_conv2d(maps[0], offsets, weight),
                conv.conv_plain(volume, last),
                conv.conv_transpose_plain(volume, up),
                conv.conv_plain(volume.bfloat16(), rounded),
            ]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = results()
        for threads in (2, 3):
            torch.set_num_threads(threads)
            for found, expected in zip(results(), alone, strict=True):
                assert torch.equal(found, expected)
    finally:
        torch.set_num_threads(before)
