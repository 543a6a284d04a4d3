from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.formats.colmap import quaternion
from gbinet.pointcloud import PointCloud
from gbinet.viewer.colour import colourise, colourise_depth, table
from gbinet.viewer.splat import orbit, splat


@pytest.mark.parametrize("name", ["depth", "confidence"])
def test_colour_maps_grow_lighter_evenly(name: str) -> None:
    colours = table(name) / 255.0  # type: ignore[arg-type]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    lightness = np.cbrt(luminance)
    assert (np.diff(lightness[::8]) > 0).all()
    steps = np.diff(lightness[::32])
    assert steps.max() < 3 * steps.min()


def test_near_is_light_and_unknown_is_grey() -> None:
    depth = np.array([[1.0, 2.0, 4.0, 0.0, np.inf]])
    colours = colourise_depth(depth).astype(int).sum(-1)[0]
    assert colours[0] > colours[1] > colours[2]
    assert (colourise_depth(depth)[0, 3:] == 58).all()
    assert (colourise_depth(np.zeros((2, 2))) == 58).all()
    assert np.isfinite(colourise(np.full((2, 2), np.nan), np.ones((2, 2), bool), "depth", 0, 1)).all()


def test_the_nearest_point_wins_and_covers_its_square() -> None:
    K = torch.tensor([[10.0, 0, 5], [0, 10, 5], [0, 0, 1]])
    camera = Camera(K, torch.eye(4), 10, 10)
    xyz = torch.tensor([[0.0, 0, 2], [0.0, 0, 1], [0.0, 0, 3], [0.0, 0, -1], [float("nan"), 0, 1]])
    rgb = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9], [9, 9, 9]], dtype=torch.uint8)
    picture = splat(PointCloud(xyz, rgb), camera, size=3, background=(1, 2, 3))
    green = (picture == [0, 255, 0]).all(-1)
    assert green.sum() == 9 and green[4:7, 4:7].all()
    assert (picture[~green] == [1, 2, 3]).all()
    assert (splat(PointCloud(torch.zeros(0, 3)), camera, background=(1, 2, 3)) == [1, 2, 3]).all()


@given(st.floats(-180, 180), st.floats(-80, 80), st.floats(0.1, 50))
def test_an_orbit_looks_at_its_centre_from_the_distance(turn: float, lift: float, distance: float) -> None:
    centre, up = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.3, 1.0])
    pose = orbit(centre, distance, torch.tensor([1.0, 0.5, 0.0]), up, turn, lift)
    camera = Camera(torch.eye(3, dtype=torch.float64), pose, 2, 2).check()
    pixel, depth = camera.project(centre.double()[None])
    assert pixel.abs().max() < 1e-9 and depth.item() == pytest.approx(distance)
    above, _ = camera.project((centre.double() + 0.01 * distance * up.double())[None])
    assert above[0, 1] < 0 and above[0, 0].abs() < 1e-9  # up in the world is up in the picture


@given(st.integers(0, 2**32 - 1))
def test_quaternions_turn_like_their_matrix(seed: int) -> None:
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    rotation *= np.linalg.det(rotation)
    w, *v = quaternion(rotation)
    vector = np.array([0.3, -1.2, 2.0])
    turned = vector + 2 * np.cross(v, np.cross(v, vector) + w * vector)
    assert np.allclose(turned, rotation @ vector, atol=1e-9)
