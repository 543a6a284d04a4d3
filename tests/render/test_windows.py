"""Training samples that are windows of larger images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.render.rig import draw_rig, draw_windows
from gbinet.render.scenery import Layout
from gbinet.render.seeding import generator
from gbinet.render.source import RenderConfig, RenderedSource

LAYOUT = Layout(np.zeros(3), 0.2, np.zeros((0, 4)), -np.ones(3) * 3, np.ones(3) * 3, 0.1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), largest=st.floats(1.01, 6.0))
def test_reference_is_a_window_of_the_large_image(seed: int, largest: float) -> None:
    rig = draw_rig(generator(seed), "table", LAYOUT, 4, 80, 64, True)
    window = draw_windows(generator(seed, "zoom"), rig, largest)
    before, after = rig.cameras.K[0], window.cameras.K[0]
    factor = float(after[0, 0] / before[0, 0])
    assert 1 <= factor <= largest * (1 + 1e-9)
    assert torch.allclose(after[:2, :2], factor * before[:2, :2])
    corner = factor * before[:2, 2] - after[:2, 2]  # of the window in the large image
    size = torch.tensor([80.0, 64.0], dtype=torch.float64)
    assert bool((corner >= -1e-6).all()) and bool((corner + size <= factor * size + 1e-6).all())
    assert torch.equal(window.cameras.cam_from_world, rig.cameras.cam_from_world)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_sources_show_what_the_reference_shows(seed: int) -> None:
    rig = draw_rig(generator(seed), "table", LAYOUT, 4, 80, 64, True)
    cameras = draw_windows(generator(seed, "zoom"), rig, 3.0).cameras
    middle = torch.tensor([40.0, 32.0, 1.0], dtype=torch.float64)
    R, t = cameras.cam_from_world[:, :3, :3], cameras.cam_from_world[:, :3, 3]
    point = R[0].T @ (torch.linalg.inv(cameras.K[0]) @ middle * rig.distance - t[0])
    seen = (cameras.K @ (R @ point + t)[..., None])[..., 0]  # [V, 3]
    away = (seen[:, :2] / seen[:, 2:] - middle[:2]).abs() / torch.tensor([80.0, 64.0])
    assert bool((away < 0.04 * 5).all())  # five standard deviations of where windows wander


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), sizes=st.floats(1.01, 4.0), zoom=st.sampled_from([1.0, 3.0]))
def test_sources_of_other_sizes_differ_in_scale_alone(seed: int, sizes: float, zoom: float) -> None:
    rig = draw_rig(generator(seed), "table", LAYOUT, 4, 80, 64, True)
    same = draw_windows(generator(seed, "zoom"), rig, zoom).cameras
    other = draw_windows(generator(seed, "zoom"), rig, zoom, sizes=sizes).cameras
    assert torch.equal(same.cam_from_world, other.cam_from_world) and torch.equal(same.K[0], other.K[0])
    scale = other.K[1:, :2, :2] / same.K[1:, :2, :2].where(same.K[1:, :2, :2] != 0, 1.0)
    assert torch.allclose(scale[:, 0, 0], scale[:, 1, 1])
    assert bool((scale[:, 0, 0].log().abs() <= np.log(sizes) + 1e-9).all())
    # What lies in the middle of a window does so in the other: the middle of the reference's plane, about.
    middle = torch.tensor([40.0, 32.0, 1.0], dtype=torch.float64)
    rays = [torch.linalg.inv(K[1:]) @ middle for K in (same.K, other.K)]
    away = (rays[0] - rays[1])[:, :2].abs() * same.K[1:, [0, 1], [0, 1]] / middle[:2]
    assert bool((away < 2 * 0.04 * 5 * max(1.0, sizes)).all())


def test_zoomed_samples_follow_from_their_number_and_no_zoom_changes_nothing() -> None:
    def sample(zoom: float) -> torch.Tensor:
        config = RenderConfig(width=48, height=40, views=2, scenes_at_once=1, zoom=zoom)
        return RenderedSource(config).sample(3).images

    assert torch.equal(sample(2.0), sample(2.0))
    assert not torch.equal(sample(2.0), sample(1.0))
    with pytest.raises(InputError, match="zoom"):
        RenderConfig(zoom=0.5)
