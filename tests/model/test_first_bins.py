"""How many bins stage 1 gets where the configuration leaves that to the views and the range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.inference import tiles
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import MOST_FIRST_BINS, GBiNet
from gbinet.model.geometry import disparity_span
from gbinet.model.search import SearchState

ADAPTIVE = GBiNetConfig(first_bins=8, first_spacing=0.5, stages=6, inverse_depth=True)


def row_of_cameras(views: int, baseline: float, width: int = 64, height: int = 48) -> Camera:
    """[1, V], all looking along z, a baseline apart along x."""
    K = torch.tensor([[1.2 * width, 0, width / 2], [0, 1.2 * width, height / 2], [0, 0, 1]])
    pose = torch.eye(4).repeat(views, 1, 1)
    pose[:, 0, 3] = torch.arange(views) * baseline
    return Camera(K.repeat(views, 1, 1)[None], pose[None], width, height)


@given(baseline=st.floats(0.01, 0.3), near=st.floats(1.0, 3.0), extent=st.floats(0.1, 20.0))
def test_disparity_span_of_parallel_cameras_is_the_difference_of_disparities(
    baseline: float, near: float, extent: float
) -> None:
    far = near + extent
    found = disparity_span(row_of_cameras(2, baseline), torch.tensor([[near, far]]))
    assert float(found) == pytest.approx(1.2 * 64 * baseline * (1 / near - 1 / far), rel=1e-3, abs=1e-4)


def test_disparity_span_follows_the_projection(make_tiny_scene: Callable[..., Any]) -> None:
    scene = make_tiny_scene(views=4)
    near, far = scene.depth_range.near, scene.depth_range.far
    middle = torch.tensor([[scene.cameras.width / 2, scene.cameras.height / 2]])
    moved = []
    for view in range(1, 4):
        ends = [scene.cameras[0].unproject(middle, torch.tensor([z])) for z in (near, far)]
        a, b = (scene.cameras[view].project(point)[0] for point in ends)
        moved.append(float((a - b).norm()))
    limits = torch.tensor([[near, far]])
    assert float(disparity_span(scene.cameras[None], limits)) == pytest.approx(sorted(moved)[1], rel=1e-3)
    assert float(disparity_span(scene.cameras[None], limits, 0.25)) == pytest.approx(
        sorted(moved)[1] / 4, rel=1e-3
    )


def test_disparity_span_past_a_camera_is_a_diagonal_at_most() -> None:
    cameras = row_of_cameras(2, 0.2)
    cameras.cam_from_world[0, 1, 2, 3] = -5.0  # the source stands in the middle of the range
    found = float(disparity_span(cameras, torch.tensor([[1.0, 10.0]])))
    assert 0 < found <= (64**2 + 48**2) ** 0.5 + 1e-3


@settings(max_examples=30, deadline=None)
@given(baseline=st.floats(0.001, 2.0), spacing=st.floats(0.2, 4.0))
def test_bins_have_the_configured_spacing_or_their_largest_number(baseline: float, spacing: float) -> None:
    model = GBiNet(replace(ADAPTIVE, first_spacing=spacing))
    cameras, limits = row_of_cameras(3, baseline), torch.tensor([[1.0, 4.0]])
    bins = model.first_bins(cameras, limits)
    assert bins is not None and bins % 8 == 0 and 8 <= bins <= MOST_FIRST_BINS
    distance = float(disparity_span(cameras, limits, 1 / 8))
    assert distance / bins <= spacing * (1 + 1e-5) or bins == MOST_FIRST_BINS
    assert bins == 8 or distance / (bins - 8) > spacing  # and not more than it takes


def test_search_and_tiles_use_the_same_first_bins() -> None:
    torch.manual_seed(0)
    model = GBiNet(ADAPTIVE).eval()
    cameras = row_of_cameras(2, 0.4, width=256, height=192)
    limits = torch.tensor([[1.0, 4.0]])
    wanted = model.first_bins(cameras, limits)
    assert wanted is not None and wanted > 8
    images = torch.rand(2, 3, 192, 256)
    with torch.inference_mode():
        result = model(images[None], cameras, limits)
        assert isinstance(result.state, SearchState) and result.state.grid.first_bins == wanted
        assert not torch.equal(result.depth, model(images[None], cameras, limits, first_bins=8).depth)
        features = [tiles.encode(model, image, None) for image in images]
        whole, _ = tiles.search(model, features, list(cameras[0]), limits[0], None)
        cut, _ = tiles.search(model, features, list(cameras[0]), limits[0], 128)
    assert torch.allclose(whole, result.depth[0], rtol=1e-4)
    assert float((whole - cut).abs().lt(1e-3).float().mean()) > 0.95


def test_fixed_numbers_stay_fixed_and_nonsense_is_refused() -> None:
    assert GBiNet("gbinet").first_bins(row_of_cameras(2, 1.0), torch.tensor([[1.0, 9.0]])) is None
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="--first-spacing"):
            replace(ADAPTIVE, first_spacing=bad)
