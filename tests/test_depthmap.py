"""Depth maps: points and normals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import InputError

HEIGHT, WIDTH = 24, 32


def camera_at(yaw: float = 0.0, pitch: float = 0.0, shift: float = 0.0) -> Camera:
    K = torch.tensor([[40.0, 0, 15], [0, 42, 13], [0, 0, 1]], dtype=torch.float64)
    cy, sy, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    turn = torch.tensor([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]], dtype=torch.float64)
    nod = torch.tensor([[1, 0, 0], [0, cp, -sp], [0, sp, cp]], dtype=torch.float64)
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = turn @ nod
    pose[:3, 3] = shift
    return Camera(K, pose, WIDTH, HEIGHT)


def plane_seen_by(camera: Camera, normal_cam: torch.Tensor, distance: float) -> torch.Tensor:
    """Depth of the plane normal . X = -distance (in the camera's frame), which faces the camera."""
    rays = torch.cat([camera.pixel_grid(), torch.ones(HEIGHT, WIDTH, 1, dtype=torch.float64)], -1)
    rays = rays @ torch.linalg.inv(camera.K).mT
    return (-distance / (rays @ normal_cam)).float()


tilts = st.floats(-0.8, 0.8)


@settings(max_examples=50)
@given(tilts, tilts, st.floats(0.5, 500), st.floats(-3, 3), st.floats(-1.5, 1.5))
def test_normals_of_a_plane_are_exact_and_face_the_camera(x, y, distance, yaw, pitch):
    camera = camera_at(yaw, pitch, shift=0.3)
    normal_cam = torch.nn.functional.normalize(torch.tensor([x, y, -1.5], dtype=torch.float64), dim=0)
    depth_map = DepthMap(plane_seen_by(camera, normal_cam, distance), camera)
    normals = depth_map.normals(max_jump=0.2)
    expected = (normal_cam @ camera.cam_from_world[:3, :3]).float()  # in the world
    assert (normals - expected).norm(dim=-1).max() < 2e-3
    to_camera = camera.centre.float() - depth_map.points()
    assert ((normals * to_camera).sum(-1) > 0).all()


def test_normals_do_not_mix_two_surfaces():
    camera = camera_at()
    normals_cam = torch.nn.functional.normalize(
        torch.tensor([[0.5, 0.1, -1], [-0.5, 0.2, -1]], dtype=torch.float64), dim=-1
    )
    front, back = (plane_seen_by(camera, n, d) for n, d in zip(normals_cam, (2.0, 4.0), strict=True))
    left = torch.arange(WIDTH) < WIDTH // 2
    normals = DepthMap(torch.where(left, front, back), camera).normals(max_jump=0.1)
    assert (normals[:, left] - normals_cam[0].float()).norm(dim=-1).max() < 2e-3
    assert (normals[:, ~left] - normals_cam[1].float()).norm(dim=-1).max() < 2e-3


def test_unknown_lonely_and_broken_pixels_have_no_normal():
    camera = camera_at()
    depth = torch.zeros(HEIGHT, WIDTH)
    depth[4, 4] = 2.0  # alone
    depth[10, 5:15] = 2.0  # a line spans no plane
    depth[20, 20], depth[20, 21], depth[20, 22] = math.nan, math.inf, -1.0
    normals = DepthMap(depth, camera).normals()
    assert torch.isfinite(normals).all() and not normals.any()
    depth[15:20, 3:8] = 2.0
    normals = DepthMap(depth, camera).normals()
    assert torch.allclose(normals[15:20, 3:8], torch.tensor([0.0, 0, -1]).expand(5, 5, 3), atol=1e-4)
    assert not normals[~DepthMap(depth, camera).valid].any()


def test_points_project_back_to_their_pixels():
    camera = camera_at(0.4, -0.2, 0.5)
    depth_map = DepthMap(1 + torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0)), camera)
    pixels, depth = camera.project(depth_map.points().reshape(-1, 3).double())
    assert (pixels.reshape(HEIGHT, WIDTH, 2) - camera.pixel_grid()).abs().max() < 1e-4
    assert (depth.reshape(HEIGHT, WIDTH) - depth_map.depth).abs().max() < 1e-5


def test_sizes_must_agree():
    with pytest.raises(InputError, match="its camera says"):
        DepthMap(torch.ones(3, 3), camera_at())
    with pytest.raises(InputError, match="confidence"):
        DepthMap(torch.ones(HEIGHT, WIDTH), camera_at(), torch.ones(3, 3))
