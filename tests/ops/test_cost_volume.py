"""The fused cost volume: a weighted mean over views, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gbinet.camera import Camera
from gbinet.model.cost_volume import ViewWeight
from gbinet.model.geometry import sources_from_reference
from gbinet.ops.cost_volume import Maps, with_reference
from gbinet.ops.cost_volume import cost_volume as of_transforms
from gbinet.ops.warp import warp_correlation

GROUPS = 4


def cost_volume(maps: Maps, cameras: Camera, hypotheses: Tensor, network: nn.Module) -> Tensor:
    return of_transforms(maps, sources_from_reference(cameras), hypotheses, network, GROUPS)


@pytest.fixture
def view_weight() -> nn.Module:
    torch.manual_seed(0)
    return ViewWeight(GROUPS).eval()


def inputs(make_tiny_scene: Callable[..., Any], views: int, size: int = 24) -> tuple[Tensor, Camera, Tensor]:
    """Features [2, V, 8, h, w], cameras [2, V], hypotheses [2, 3, h, w]."""
    scene = make_tiny_scene(views, size, size + 8)
    features = torch.randn(2, views, 8, size, size + 8, generator=torch.Generator().manual_seed(views))
    cameras = Camera.stack([scene.cameras, scene.cameras])
    hypotheses = 3 + torch.rand(2, 3, size, size + 8, generator=torch.Generator().manual_seed(1))
    return features, cameras, hypotheses


@torch.inference_mode()
def test_it_is_the_weighted_mean_of_the_views(make_tiny_scene: Any, view_weight: nn.Module) -> None:
    features, cameras, hypotheses = inputs(make_tiny_scene, 4)
    transforms = sources_from_reference(cameras)
    volumes = [
        warp_correlation(features[:, 0], features[:, v], transforms[:, v - 1], hypotheses, GROUPS)
        for v in (1, 2, 3)
    ]
    weights = [view_weight(v) for v in volumes]
    assert all(((w > 0) & (w < 1)).all() and w.shape == (2, 1, 1, 24, 32) for w in weights)
    expected = sum(w * v for w, v in zip(weights, volumes, strict=True)) / sum(weights)
    found = cost_volume(features, cameras, hypotheses, view_weight)
    torch.testing.assert_close(found, expected)


@torch.inference_mode()
def test_pixels_whose_weights_are_all_zero_are_zero(make_tiny_scene: Any) -> None:
    network = ViewWeight(GROUPS).eval()
    nn.init.constant_(network.output.bias, -200.0)  # its sigmoid is 0 in float32
    found = cost_volume(*inputs(make_tiny_scene, 3), network)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 1, 1, 2, 2, 3, 3)], ids=["shuffled", "repeated"])
@torch.inference_mode()
def test_shuffling_or_repeating_the_sources_changes_nothing(
    make_tiny_scene: Any, view_weight: nn.Module, order: tuple[int, ...]
) -> None:
    features, cameras, hypotheses = inputs(make_tiny_scene, 4)
    found = cost_volume(features[:, order], cameras[:, order], hypotheses, view_weight)
    expected = cost_volume(features, cameras, hypotheses, view_weight)
    torch.testing.assert_close(found, expected)


@torch.inference_mode()
def test_maps_of_different_size_per_view(make_tiny_scene: Any, view_weight: nn.Module) -> None:
    """A window of the reference against whole sources gives that window of the volume."""
    features, cameras, hypotheses = inputs(make_tiny_scene, 3)
    whole = cost_volume(features, cameras, hypotheses, view_weight)
    top, left, height, width = 5, 9, 11, 13
    window = (..., slice(top, top + height), slice(left, left + width))
    K = cameras.K.clone()
    K[:, 0] = cameras[:, 0].cropped(left, top, width, height).K
    tile_cameras = Camera(K, cameras.cam_from_world, width, height)
    maps = [features[:, 0][window], features[:, 1], features[:, 2]]
    tile = cost_volume(maps, tile_cameras, hypotheses[window], view_weight)
    torch.testing.assert_close(tile, whole[window], rtol=1e-3, atol=1e-3)


def test_bands_of_rows_change_nothing(
    make_tiny_scene: Any, view_weight: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients, a CPU works on some rows at a time; with them, on all at once."""
    features, cameras, hypotheses = inputs(make_tiny_scene, 3)
    whole = cost_volume(features, cameras, hypotheses, view_weight).detach()
    for pixels in (1, 5 * 32, 24 * 32):
        monkeypatch.setattr("gbinet.ops.cost_volume.BAND_PIXELS", pixels)
        with torch.inference_mode():
            bands = cost_volume(features, cameras, hypotheses, view_weight)
        torch.testing.assert_close(bands, whole, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_half_features_keep_their_type_and_stay_close(
    make_tiny_scene: Any, view_weight: nn.Module, dtype: torch.dtype
) -> None:
    features, cameras, hypotheses = inputs(make_tiny_scene, 3)
    expected = cost_volume(features, cameras, hypotheses, view_weight)
    half = view_weight.to(dtype)
    found = cost_volume(features.to(dtype), cameras, hypotheses, half)
    assert found.dtype == dtype
    assert (found.float() - expected).abs().max() < 20 * torch.finfo(dtype).eps + 1e-5


def test_memory_does_not_grow_with_the_number_of_views(
    make_tiny_scene: Any, view_weight: nn.Module, live_memory: Callable[[], Any]
) -> None:
    peaks = []
    for views in (4, 12):
        features, cameras, hypotheses = inputs(make_tiny_scene, views, 48)
        with torch.inference_mode(), live_memory() as memory:
            cost_volume(features, cameras, hypotheses, view_weight)
        peaks.append(memory.peak)
    assert peaks[1] < 1.01 * peaks[0]  # the cameras' matrices alone grow


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_with_reference_has_the_gradient_of_indexing(used: tuple[bool, bool]) -> None:
    """Whether the maps, the reference, or both are used."""
    torch.manual_seed(0)
    maps = torch.randn(2, 3, 4, 5, 6, requires_grad=True)
    weights = [torch.randn(2, 3, 4, 5, 6) * used[0], torch.randn(2, 4, 5, 6) * used[1]]

    def gradient(pair: tuple[Tensor, Tensor]) -> Tensor:
        parts = [(p.square() * w).sum() for p, w, use in zip(pair, weights, used, strict=True) if use]
        return torch.autograd.grad(sum(parts), maps)[0]

    together, reference = with_reference(maps)
    assert isinstance(together, Tensor)
    torch.testing.assert_close(gradient((together, reference)), gradient((maps, maps[:, 0])))
