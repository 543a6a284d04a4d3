"""Cameras that are slightly wrong, and which sources see a point: measured by reprojection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.render import Difficulties, RenderConfig, make_scene, render_depth, render_sample
from gbinet.render.calibration import distortion_shift, perturb
from gbinet.render.rig import draw_rig
from gbinet.render.scenery import Layout
from gbinet.render.seeding import generator
from gbinet.render.visibility import visible_in_sources

LAYOUT = Layout(np.zeros(3), 0.2, np.zeros((0, 4)), -np.ones(3) * 3, np.ones(3) * 3, 0.1)
SMALL = RenderConfig(width=64, height=48, views=3)


def error(true: Camera, given: Camera, distortion: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """RMS [V - 1] of how far the reference's points are projected from where the sources show them."""
    points = true[0].unproject(true.pixel_grid().reshape(-1, 2), depth.reshape(-1).double())
    rms = []
    for v in range(1, true.K.shape[0]):
        seen, _ = true[v].project(points)
        wrong, _ = given[v].project(points)
        observed = seen + distortion_shift(true[v : v + 1], distortion[v - 1 : v], seen[None])[0]
        size = torch.tensor([true.width, true.height])
        inside = (seen >= 0).all(-1) & (seen < size).all(-1)
        if bool(inside.any()):
            rms.append((wrong - observed)[inside].square().sum(-1).mean().sqrt())
    return torch.stack(rms)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), largest=st.floats(0.05, 1.5))
def test_error_of_reprojection_stays_within_its_bound(seed: int, largest: float) -> None:
    rig = draw_rig(generator(seed), "table", LAYOUT, 4, 160, 128)
    depth = rig.distance * (1 + 0.4 * torch.rand(128, 160, generator=torch.Generator().manual_seed(seed)))
    perturbed = perturb(generator(seed, "calibration"), rig.cameras, depth, rig.distance, largest)
    assert torch.equal(perturbed.cameras.K[0], rig.cameras.K[0])
    assert torch.equal(perturbed.cameras.cam_from_world[0], rig.cameras.cam_from_world[0])
    perturbed.cameras.check()
    rms = error(rig.cameras, perturbed.cameras, perturbed.distortion, depth)
    assert float(rms.max()) <= 1.1 * largest  # measured at other points than drawn
    assert float(rms.min()) > 0


@given(st.integers(0, 10_000), st.floats(0.26, 0.9))
def test_a_source_that_sees_no_points_stays_true(seed: int, ahead: float) -> None:
    K = torch.tensor([[50.0, 0, 32], [0, 50, 24], [0, 0, 1]], dtype=torch.float64).expand(3, 3, 3)
    pose = torch.eye(4, dtype=torch.float64).repeat(3, 1, 1)
    pose[1, 2, 3], pose[2, 0, 3] = -ahead, 0.02
    true = Camera(K, pose, 64, 48)
    perturbed = perturb(generator(seed), true, torch.full((48, 64), 0.25), 1.0, 0.7)
    perturbed.cameras.check()
    assert torch.equal(perturbed.cameras.K[1], K[1]) and torch.equal(
        perturbed.cameras.cam_from_world[1], pose[1]
    )
    assert float(perturbed.distortion[0]) == 0
    assert not torch.equal(perturbed.cameras.cam_from_world[2], pose[2])  # the other one has points before it


def test_errors_are_spread_over_the_whole_bound() -> None:
    worst = []
    for seed in range(40):
        rig = draw_rig(generator(seed), "table", LAYOUT, 3, 160, 128)
        depth = torch.full((128, 160), rig.distance)
        perturbed = perturb(generator(seed, "calibration"), rig.cameras, depth, rig.distance, 0.7)
        worst.append(float(error(rig.cameras, perturbed.cameras, perturbed.distortion, depth).max()))
    assert min(worst) < 0.15 and 0.5 < max(worst) < 0.75


def test_calibration_changes_cameras_and_photos_of_sources_only_a_little() -> None:
    scene = make_scene(7, None, "table", "cpu", Difficulties().only())
    plain = render_sample(scene, (3, 1), config_with())
    wrong = render_sample(scene, (3, 1), config_with("calibration"))
    assert torch.equal(plain.depth, wrong.depth) and torch.equal(plain.depth_range, wrong.depth_range)
    assert torch.equal(plain.cameras.K[0], wrong.cameras.K[0])
    assert torch.equal(plain.cameras.cam_from_world[0], wrong.cameras.cam_from_world[0])
    assert not torch.equal(plain.cameras.cam_from_world[1:], wrong.cameras.cam_from_world[1:])
    assert 0 < float((plain.images[1:] - wrong.images[1:]).abs().mean()) < 0.05


def config_with(*names: str) -> RenderConfig:
    return replace(SMALL, difficulties=Difficulties().only(*names))


def test_visible_points_are_those_that_the_sources_depth_confirms() -> None:
    scene = make_scene(11, kind="table")
    cameras = draw_rig(generator(4, 11), "table", scene.layout, 4, 160, 128, True).cameras
    depth, _ = render_depth(scene, cameras)
    surfaces = torch.where(depth > 0, depth, torch.inf)
    visible = visible_in_sources(cameras, depth[0], surfaces)
    assert visible.shape == (3, 128, 160) and visible.dtype == torch.bool
    assert not bool(visible[:, depth[0] == 0].any())
    points = cameras[0].unproject(cameras[0].pixel_grid().reshape(-1, 2), depth[0].reshape(-1).double())
    size = torch.tensor([160, 128])
    for v in range(3):
        pixel, z = cameras[v + 1].project(points)
        inside = (pixel >= 0).all(-1) & (pixel < size).all(-1) & (depth[0].reshape(-1) > 0)
        column, row = pixel[inside].long().unbind(-1)
        found = visible[v].reshape(-1)
        assert not bool(found[~inside].any())
        grid = (pixel[inside] / size * 2 - 1)[None, None]
        inverse = (1 / depth[v + 1].double().clamp_min(1e-3))[None, None]  # linear in the image on a plane
        there = 1 / F.grid_sample(inverse, grid, align_corners=False)[0, 0, 0]
        same = (there / z[inside] - 1).abs() < 0.002
        around = F.max_pool2d(surfaces[v + 1][None], 3, 1, 1)[0, row, column]
        hidden = z[inside] > 1.02 * around  # everything near it is in front of it
        assert float(same.double().mean()) > 0.5
        assert float(found[inside][same].double().mean()) > 0.99
        assert not bool(found[inside][hidden].any())
    assert bool(hidden.any())


def test_half_of_what_stands_behind_a_wall_is_hidden() -> None:
    """Two cameras side by side, a wall before the left half of the second's picture."""
    K = torch.tensor([[50.0, 0, 32], [0, 50, 24], [0, 0, 1]], dtype=torch.float64).expand(2, 3, 3)
    pose = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    pose[1, 0, 3] = -0.1
    cameras = Camera(K, pose, 64, 48)
    surfaces = torch.full((2, 96, 128), 4.0)
    surfaces[1, :, :64] = 1.0
    visible = visible_in_sources(cameras, torch.full((48, 64), 4.0), surfaces)
    shift = 50 * 0.1 / 4  # pixels to the left
    columns = cameras.pixel_grid()[0, :, 0] - shift
    assert torch.equal(visible[0, 10], columns >= 32)
    assert bool(visible_in_sources(cameras, torch.full((48, 64), 4.0), surfaces * torch.inf)[0, :, 4:].all())


@pytest.mark.parametrize("wall", [4.0, torch.inf])
@pytest.mark.parametrize("shape", ["upright", "level", "diagonal", "dot"])
@given(at=st.integers(1, 14), near=st.floats(0.5, 3.6))
def test_what_is_behind_something_one_sample_wide_is_hidden(
    shape: str, wall: float, at: int, near: float
) -> None:
    """Both cameras stand in one place; only in the second's picture there is a wire, or a dot."""
    K = torch.tensor([[16.0, 0, 8], [0, 16, 8], [0, 0, 1]], dtype=torch.float64).expand(2, 3, 3)
    cameras = Camera(K, torch.eye(4, dtype=torch.float64).repeat(2, 1, 1), 16, 16)
    row, column = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    wires = {"upright": column == at, "level": row == at, "diagonal": row == column}
    wire = wires.get(shape, (row == at) & (column == at))
    surfaces = torch.where(wire, near, torch.full((2, 16, 16), wall))
    visible = visible_in_sources(cameras, torch.full((16, 16), 4.0), surfaces)
    assert torch.equal(visible[0], ~wire)
