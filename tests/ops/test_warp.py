"""The warp and the correlation: against a slow count in plain Python, and by their laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gbinet.camera import Camera
from gbinet.model.geometry import sources_from_reference
from gbinet.ops.warp import at_scale, source_positions, warp, warp_correlation


def two_cameras(seed: int, width: int = 9, height: int = 7) -> Camera:
    """A reference and a source that looks at about the same place, float64, batch [1, 2]."""
    g = torch.Generator().manual_seed(seed)
    K = torch.tensor([[8.0, 0, width / 2], [0, 9.0, height / 2], [0, 0, 1]], dtype=torch.float64).repeat(
        2, 1, 1
    )
    K[1, :2] *= 1.1
    angles = 0.2 * torch.randn(2, 3, generator=g, dtype=torch.float64)
    pose = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    for view in range(2):
        x, y, z = angles[view].tolist()
        cross = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
        pose[view, :3, :3] = torch.linalg.matrix_exp(cross)
    pose[:, :3, 3] = 0.3 * torch.randn(2, 3, generator=g, dtype=torch.float64)
    return Camera(K[None], pose[None], width, height)


def sample_slowly(image: np.ndarray, x: float, y: float) -> np.ndarray:
    """Bilinear sample of [C, h, w] at pixel coordinates (centres at +0.5), zero outside."""
    column, row = x - 0.5, y - 0.5
    left, top = int(np.floor(column)), int(np.floor(row))
    total = np.zeros(len(image))
    for j, i in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        if 0 <= j < image.shape[1] and 0 <= i < image.shape[2]:
            total += (1 - abs(column - i)) * (1 - abs(row - j)) * image[:, j, i]
    return total


def correlate_slowly(
    reference: np.ndarray, source: np.ndarray, cameras: Camera, depth: np.ndarray, groups: int, scale: float
) -> np.ndarray:
    """The published cost of one source view, pixel by pixel: [G, D, H, W]."""
    to_scale = np.diag([scale, scale, 1.0])
    K_ref, K_src = (to_scale @ K for K in cameras.K[0].numpy())
    ref, src = cameras.cam_from_world[0].numpy()
    bins, height, width = depth.shape
    volume = np.zeros((groups, bins, height, width))
    for d in range(bins):
        for v in range(height):
            for u in range(width):
                ray = np.linalg.inv(K_ref) @ np.array([u + 0.5, v + 0.5, 1.0])
                world = np.linalg.inv(ref) @ np.append(ray * depth[d, v, u], 1.0)
                x, y, z = K_src @ (src @ world)[:3]
                if z > 0:
                    product = reference[:, v, u] * sample_slowly(source, x / z, y / z)
                    volume[:, d, v, u] = product.reshape(groups, -1).mean(1)
    return volume


@settings(max_examples=8)
@given(st.integers(0, 2**31), st.sampled_from([0.5, 1.0]), st.sampled_from([1, 2, 4]))
def test_correlation_equals_a_loop_over_pixels(seed: int, scale: float, groups: int) -> None:
    g = torch.Generator().manual_seed(seed)
    cameras = two_cameras(seed, round(9 / scale), round(7 / scale))
    reference = torch.randn(4, 7, 9, generator=g)
    source = torch.randn(4, 7, 9, generator=g)
    depth = 1 + 5 * torch.rand(3, 7, 9, generator=g)
    transform = at_scale(sources_from_reference(cameras), round(1 / scale))[:, 0]
    found = warp_correlation(reference[None], source[None], transform, depth[None], groups)
    arrays = [t.double().numpy() for t in (reference, source)]
    expected = correlate_slowly(*arrays, cameras, depth.double().numpy(), groups, scale)
    torch.testing.assert_close(found[0].double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
    assert np.abs(expected).max() > 0.01  # something was seen


@given(st.integers(0, 2**31))
def test_positions_are_projections(seed: int) -> None:
    """The fused matrices say the same as unprojecting and projecting with the cameras."""
    cameras = two_cameras(seed)
    depth = 1 + 4 * torch.rand(1, 2, 7, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    transform = sources_from_reference(cameras)[:, 0]
    found = source_positions(transform, depth)  # [1, 2, 7, 9, 2]
    pixels = cameras.pixel_grid().reshape(-1, 2)
    for d in range(2):
        world = cameras[0, 0].unproject(pixels, depth[0, d].flatten())
        expected, z = cameras[0, 1].project(world)
        visible = z > 0.05
        torch.testing.assert_close(
            found[0, d].reshape(-1, 2)[visible], expected[visible], rtol=1e-4, atol=1e-3
        )


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.125])
def test_an_identity_warp_returns_the_map(scale: float, dtype: torch.dtype, device: torch.device) -> None:
    camera = two_cameras(3, 64, 48)[0, 0]
    cameras = Camera.stack([camera, camera])[None].to(device)
    features = torch.randn(1, 5, round(48 * scale), round(64 * scale)).to(device, dtype)
    depth = 1 + torch.rand(1, 3, *features.shape[-2:], device=device)
    transform = at_scale(sources_from_reference(cameras), round(1 / scale))[:, 0]
    warped = warp(features, transform, depth)
    assert warped.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    expected = features[:, :, None].expand_as(warped)
    torch.testing.assert_close(warped, expected, rtol=tolerance, atol=tolerance)


def test_a_shift_by_whole_pixels_shifts_the_map_and_zero_comes_in() -> None:
    K = torch.tensor([[10.0, 0, 4], [0, 10.0, 3], [0, 0, 1]])
    pose = torch.eye(4).repeat(2, 1, 1)
    pose[1, 0, 3] = 0.4  # at depth 2: 10 * 0.4 / 2 = 2 pixels to the right in the source
    cameras = Camera(K.expand(2, 3, 3), pose, 8, 6)[None]
    features = torch.randn(1, 3, 6, 8)
    transform = sources_from_reference(cameras)[:, 0]
    warped = warp(features, transform, torch.full((1, 1, 6, 8), 2.0))[:, :, 0]
    torch.testing.assert_close(warped[..., :6], features[..., 2:], rtol=1e-5, atol=1e-5)
    assert not warped[..., 6:].any()


def test_points_behind_the_source_count_as_outside() -> None:
    pose = torch.eye(4).repeat(2, 1, 1)
    pose[1, 2, 3] = -3.0  # the source stands three units further on
    cameras = Camera(torch.eye(3).expand(2, 3, 3), pose, 4, 4)[None]
    transform = sources_from_reference(cameras)[:, 0]
    for depth in (1.0, 3.0):  # behind it, and on its image plane
        warped = warp(torch.ones(1, 2, 4, 4), transform, torch.full((1, 1, 4, 4), depth))
        assert not warped.any()


def test_coordinates_keep_float32_whatever_the_features_are(dtype: torch.dtype) -> None:
    """A ramp across a wide map: bfloat16 coordinates would be wrong by whole pixels."""
    width = 1024
    ramp = (torch.arange(width) / width)[None, None, None].expand(1, 1, 4, width)
    pose = torch.eye(4).repeat(2, 1, 1)
    pose[1, 0, 3] = 0.0137
    K = torch.tensor([[900.0, 0, width / 2], [0, 900.0, 2], [0, 0, 1]])
    cameras = Camera(K.expand(2, 3, 3), pose, width, 4)[None]
    transform = sources_from_reference(cameras)[:, 0]
    depth = torch.full((1, 1, 4, width), 3.3)
    exact = warp(ramp.double(), transform, depth.double())
    found = warp(ramp.to(dtype), transform, depth)
    error = (found.double() - exact)[..., 10:-10].abs().max()
    assert error < 2 * torch.finfo(dtype).eps


def gradients_are_right(function: Callable[..., Any], *inputs: Tensor) -> bool:
    return torch.autograd.gradcheck(function, [t.clone().requires_grad_() for t in inputs], atol=1e-4)


def test_gradients_of_warp_and_correlation() -> None:
    g = torch.Generator().manual_seed(0)
    cameras = two_cameras(2)
    transform = sources_from_reference(cameras)[:, 0].double()
    source = torch.randn(1, 4, 7, 9, generator=g, dtype=torch.float64)
    reference = torch.randn(1, 4, 7, 9, generator=g, dtype=torch.float64)
    depth = 2 + 2 * torch.rand(1, 2, 7, 9, generator=g, dtype=torch.float64)
    assert gradients_are_right(lambda s, d: warp(s, transform, d), source, depth)
    assert gradients_are_right(
        lambda r, s, d: warp_correlation(r, s, transform, d, 2), reference, source, depth
    )
