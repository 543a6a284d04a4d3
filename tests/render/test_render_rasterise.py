"""Depth against closed forms, watertight meshes, and the kernels in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.render import RenderScene, render_depth, shapes
from gbinet.render.mesh import Mesh
from gbinet.render.paint import paint
from gbinet.render.rasterise import EMPTY, face_index, visible_keys
from gbinet.render.scenery import Draft, Layout, Light, Material, Part, assemble, look_at
from gbinet.render.seeding import generator


def scene_of(*meshes: Mesh) -> RenderScene:
    """Meshes in one plain material under one lamp."""
    texture = paint(generator(1), "noise", 64)
    layout = Layout(np.zeros(3), 1.0, np.zeros((0, 4)), -np.ones(3), np.ones(3), 0.1)
    lamp = Light((1.0, 2.0, 6.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 2.0)
    parts = [Part(mesh, Material(texture)) for mesh in meshes]
    draft = Draft(parts, [lamp], ((0.4,) * 3, (0.2,) * 3), texture, layout)
    return assemble("test", 0, draft, torch.device("cpu"))


def camera_at(position: list[float], target: list[float], focal: float = 90.0, roll: float = 0.3) -> Camera:
    """One camera [1], 96 x 72, with skew and unequal focal lengths."""
    K = torch.tensor([[focal, 0.7, 47.1], [0, focal * 1.1, 37.3], [0, 0, 1]], dtype=torch.float64)
    pose = torch.from_numpy(look_at(np.array(position), np.array(target), roll))
    return Camera(K[None], pose[None], 96, 72)


def rays_of(camera: Camera) -> tuple[torch.Tensor, torch.Tensor]:
    """Camera centre and the ray of unit depth through each pixel's centre, from Camera alone."""
    one = camera[0]
    pixels = one.pixel_grid().reshape(-1, 2)
    points = one.unproject(pixels, torch.ones(len(pixels), dtype=torch.float64))
    return one.centre, (points - one.centre).view(one.height, one.width, 3)


@settings(max_examples=12, deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.4, 2), st.floats(-0.5, 0.5), st.floats(1e-2, 1e3))
def test_plane_has_the_depth_of_the_closed_form(
    x: float, y: float, z: float, tilt: float, scale: float
) -> None:
    """Also where the plane reaches behind the camera, and at any metric scale."""
    plane = shapes.quad(
        np.array([-9.0, -9, 0]) * scale, np.array([18.0, 0, 0]) * scale, np.array([0, 18.0, 0]) * scale
    )
    camera = camera_at([x * scale, y * scale, z * scale], [scale * tilt, scale * 0.3, 0])
    depth = render_depth(scene_of(plane), camera)[0][0].double()
    centre, rays = rays_of(camera)
    truth = -centre[2] / rays[..., 2]
    hit = centre + rays * truth[..., None]
    inside = (truth > 0) & (hit[..., :2].abs() < 8.9 * scale).all(-1)
    assert inside.any()
    assert bool((depth[inside] > 0).all())
    assert float(((depth - truth).abs() / truth)[inside].max()) < 1e-5


def test_sphere_and_box_have_the_depth_of_the_closed_form() -> None:
    camera = camera_at([1.2, 0.9, 1.1], [0, 0, 0.4])
    centre, rays = rays_of(camera)
    ball = render_depth(scene_of(shapes.sphere(0.5, segments=1024)), camera)[0][0].double()
    middle = torch.tensor([0, 0, 0.5], dtype=torch.float64)
    a, b = (rays * rays).sum(-1), (rays * (centre - middle)).sum(-1)
    root = b.square() - a * ((centre - middle).square().sum() - 0.25)
    truth = (-b - root.clamp_min(0).sqrt()) / a
    inner = root > 0.25 * root.max()  # a polyhedron has another outline than the sphere
    assert float(((ball - truth).abs() / truth)[inner].max()) < 1e-5

    size = (0.8, 0.6, 0.5)
    cube = render_depth(scene_of(shapes.box(size)), camera)[0][0].double()
    low = torch.tensor([-0.4, -0.3, 0.0], dtype=torch.float64)
    high = torch.tensor([0.4, 0.3, 0.5], dtype=torch.float64)
    first, second = (low - centre) / rays, (high - centre) / rays
    enter = torch.minimum(first, second).amax(-1)
    leave = torch.maximum(first, second).amin(-1)
    clear = leave - enter > 1e-3  # not on the outline
    assert float(((cube - enter).abs() / enter)[clear].max()) < 1e-5
    assert bool((cube[leave - enter < -1e-3] == 0).all())


def test_closed_meshes_have_no_cracks() -> None:
    """From inside a fine ball every pixel sees it."""
    ball = shapes.blob(generator(5), 64)
    camera = camera_at([0.05, 0.02, 0.45], [0.3, 0.4, 0.5], focal=40.0)
    keys = visible_keys(ball.positions, ball.faces, camera)
    assert bool((keys != EMPTY).all())


def test_nearer_wins_in_any_order() -> None:
    camera = camera_at([0.0, 0.3, 2.0], [0, 0, 0])
    mesh = shapes.tower(generator(3))
    keys = visible_keys(mesh.positions, mesh.faces, camera)
    order = torch.randperm(len(mesh.faces), generator=torch.Generator().manual_seed(0))
    shuffled = visible_keys(mesh.positions, mesh.faces[order], camera)
    assert torch.equal(keys >> 32, shuffled >> 32)
    seen = face_index(keys) >= 0
    assert bool(seen.any()) and not bool(seen.all())


def test_broken_vertices_and_empty_scenes_are_skipped() -> None:
    camera = camera_at([0.0, 0.3, 2.0], [0, 0, 0])
    good = shapes.box((0.5, 0.5, 0.5))
    bad = torch.cat([good.positions, torch.tensor([[torch.nan, 0, 0], [torch.inf, 0, 0], [0.1, 0.1, 9.0]])])
    more = torch.cat([good.faces, torch.tensor([[24, 0, 1], [25, 0, 1], [3, 3, 3]])])
    assert torch.equal(visible_keys(bad, more, camera), visible_keys(good.positions, good.faces, camera))
    assert bool((visible_keys(good.positions, good.faces[:0], camera) == EMPTY).all())


def test_kernels_equal_the_plain_code() -> None:
    """In Triton's interpreter, which needs no GPU but must be chosen before triton is imported."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpret_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
