"""Photos painted onto a mesh: looked at from where they were taken, it looks like them."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import RADIUS, SceneMaker, true_depth
from PIL import Image
from rendered_texture import psnr, show

from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError
from gbinet.formats.image import read_image
from gbinet.formats.textured_mesh import TexturedMesh, write_glb, write_obj
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.fusion.mesh import Mesher, simplified
from gbinet.fusion.paint import even_exposure, paint
from gbinet.fusion.textured import picture_size, upwards, write_textured
from gbinet.fusion.unwrap import FlatMesh, unwrap
from gbinet.pipeline.demo import DemoConfig, render_scene
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder

pytest.importorskip("xatlas")


class TrueDepths:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def load(self, index: int) -> DepthMap:
        camera = self.scene.views[index].camera
        return DepthMap(true_depth(camera), camera)


def grid(rows: int, columns: int) -> np.ndarray:
    """Triangles of a grid of vertices."""
    corner = np.arange((rows - 1) * columns).reshape(rows - 1, columns)[:, :-1].reshape(-1)
    upper = np.stack([corner, corner + 1, corner + columns], 1)
    return np.concatenate([upper, np.stack([corner + 1, corner + columns + 1, corner + columns], 1)])


def ball_and_floor() -> tuple[np.ndarray, np.ndarray]:
    """The surface of the ball scene."""
    up, around = np.meshgrid(
        np.linspace(0.01, np.pi - 0.01, 30), np.linspace(0, 2 * np.pi, 60), indexing="ij"
    )
    ball = RADIUS * np.stack([np.sin(up) * np.cos(around), -np.cos(up), np.sin(up) * np.sin(around)], -1)
    x, z = np.meshgrid(np.linspace(-6, 6, 40), np.linspace(-6, 6, 40), indexing="ij")
    floor = np.stack([x, np.full_like(x, RADIUS), z], -1)
    faces = np.concatenate([grid(30, 60), grid(40, 40) + ball.size // 3])
    return np.concatenate([ball.reshape(-1, 3), floor.reshape(-1, 3)]), faces


def photo_of(scene: Scene, index: int) -> torch.Tensor:
    return torch.from_numpy(read_image(scene.views[index].image_path)).float() / 255


@pytest.fixture(scope="module")
def flat() -> FlatMesh:
    return unwrap(*ball_and_floor(), 640)


@pytest.fixture
def painted(ball_scene: SceneMaker, flat: FlatMesh) -> tuple[Scene, TexturedMesh]:
    scene = ball_scene(views=4, width=192, height=144)
    return scene, TexturedMesh(
        flat.vertices, flat.faces, flat.uv, paint(scene, TrueDepths(scene), flat, FusionConfig())
    )


def test_the_mesh_looks_like_the_photos(painted: tuple[Scene, TexturedMesh]) -> None:
    scene, mesh = painted
    scores = []
    for index, view in enumerate(scene.views):
        image, seen = show(mesh, view.camera)
        real = seen & (true_depth(view.camera) > 0)  # beyond 12 units the scene ends
        error = ((image - photo_of(scene, index))[real] ** 2).mean()
        scores.append(-10 * float(torch.log10(error)))
    assert min(scores) > 24, scores


def test_what_stands_in_front_is_not_painted_onto_what_is_behind(
    ball_scene: SceneMaker, flat: FlatMesh
) -> None:
    """From above, the floor behind the ball shows the floor, never the ball."""
    red = ball_scene(views=4, width=192, height=144)
    for view in red.views:  # the ball is red, the floor blue
        points = DepthMap(true_depth(view.camera), view.camera).points()
        on_ball = points.norm(dim=-1) < RADIUS * 1.01
        colours = torch.where(on_ball[..., None], torch.tensor([255, 0, 0]), torch.tensor([0, 0, 255]))
        Image.fromarray(colours.to(torch.uint8).numpy()).save(view.image_path)
    picture = paint(red, TrueDepths(red), flat, FusionConfig())
    floor = (np.abs(flat.vertices[flat.faces][..., 1] - RADIUS) < 1e-6).all(1)
    middle = torch.from_numpy(flat.vertices[flat.faces].mean(1))
    seen = torch.zeros(len(middle), dtype=torch.bool)
    for view in red.views:  # by the truth
        pixels, depth = view.camera.project(middle)
        inside = (depth > 0) & (pixels > 0).all(-1) & (pixels < torch.tensor([192.0, 144.0])).all(-1)
        at = torch.where(inside[:, None], pixels, 0).long()
        seen |= inside & ((true_depth(view.camera)[at[:, 1], at[:, 0]] - depth).abs() < 0.02 * depth)
    uv = flat.uv[flat.faces[floor & seen.numpy()]].mean(1)
    shades = picture[(uv[:, 1] * flat.size).astype(int), (uv[:, 0] * flat.size).astype(int)].astype(int)
    assert (shades[:, 0] > shades[:, 2]).mean() < 0.005


def test_exposures_are_evened_out() -> None:
    rng = torch.Generator().manual_seed(0)
    shades = torch.rand(500, 3, generator=rng) * 0.4 + 0.2
    true = [0.7, 1.0, 1.4]
    everywhere = torch.arange(500)
    gains = even_exposure([(v, everywhere, (shades * g).clamp(0, 1)) for v, g in enumerate(true)])
    products = torch.stack([gains[v] * g for v, g in enumerate(true)])
    assert torch.allclose(products, products[:1].expand(3, 3), rtol=0.02)
    assert even_exposure([]) == {}


def test_photos_of_other_brightness_leave_no_seams(ball_scene: SceneMaker, flat: FlatMesh) -> None:
    scene = ball_scene(views=4, width=128, height=96)
    even = paint(scene, TrueDepths(scene), flat, FusionConfig()).astype(float)
    for index, view in enumerate(scene.views):
        pixels = read_image(view.image_path).astype(float) * (0.75 if index % 2 else 1.0)
        Image.fromarray(pixels.round().astype(np.uint8)).save(view.image_path)
    uneven = paint(scene, TrueDepths(scene), flat, FusionConfig()).astype(float)
    known = (even.max(-1) > 40) & (even.max(-1) < 240)
    ratio = (uneven[known].mean(-1) / even[known].mean(-1)).clip(0.5, 1.5)
    assert np.quantile(ratio, 0.95) - np.quantile(ratio, 0.05) < 0.1  # 0.25 where nothing evens them out


def test_files_hold_the_mesh(painted: tuple[Scene, TexturedMesh], tmp_path: Path) -> None:
    _, mesh = painted
    far = replace(mesh, vertices=mesh.vertices + np.array([576700.0, 5188100.0, 200.0]))
    data = write_glb(tmp_path / "mesh.glb", far, np.array([0.0, 0.0, 1.0])).read_bytes()
    magic, version, length = struct.unpack_from("<4sII", data)
    assert (magic, version, length) == (b"glTF", 2, len(data))
    size = struct.unpack_from("<I", data, 12)[0]
    content = json.loads(data[20 : 20 + size])
    assert content["nodes"][1]["translation"] == pytest.approx(far.vertices.mean(0).tolist())
    assert content["nodes"][0]["rotation"] == pytest.approx([-(0.5**0.5), 0, 0, 0.5**0.5])  # z up -> y up
    write_obj(tmp_path / "mesh.obj", far)
    lines = (tmp_path / "mesh.obj").read_text().splitlines()
    assert sum(line.startswith("f ") for line in lines) == len(mesh.faces)
    trimesh = pytest.importorskip("trimesh")
    for name in ("mesh.glb", "mesh.obj"):
        found = trimesh.load(tmp_path / name, force="mesh", process=False)
        assert len(found.faces) == len(mesh.faces)
        picture = getattr(found.visual.material, "image", None) or found.visual.material.baseColorTexture
        assert picture.size == (mesh.picture.shape[1], mesh.picture.shape[0])


def test_both_files_and_a_fitting_picture(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=4, width=64, height=48)
    vertices, faces = ball_and_floor()
    assert picture_size(scene, vertices, faces) == 512
    large = ball_scene(views=4, width=640, height=480)
    assert 1024 <= picture_size(large, vertices, faces) <= 4096
    written = write_textured(scene, TrueDepths(scene), vertices, faces, tmp_path / "mesh.ply")
    assert [p.name for p in written] == ["mesh.glb", "mesh.obj"]
    assert {p.name for p in tmp_path.glob("mesh.*")} == {"mesh.glb", "mesh.obj", "mesh.mtl", "mesh.png"}
    up = upwards(scene)
    assert up[1] / np.linalg.norm(up) < -0.8  # y points down in this scene


def test_a_mesh_that_no_photo_sees_is_reported(ball_scene: SceneMaker, flat: FlatMesh) -> None:
    scene = ball_scene(views=3)
    away = replace(flat, vertices=flat.vertices + np.array([0, -500, 0]))
    with pytest.raises(GBiNetError, match="no photo sees"):
        paint(scene, TrueDepths(scene), away, FusionConfig())


def test_psnr_of_a_wrong_picture_is_low(painted: tuple[Scene, TexturedMesh]) -> None:
    scene, mesh = painted
    wrong = TexturedMesh(mesh.vertices, mesh.faces, mesh.uv, 255 - mesh.picture)
    assert psnr(wrong, scene.views[0].camera, photo_of(scene, 0)) < 15


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 8])
def test_the_mesh_of_a_rendered_scene_looks_like_its_photos(tmp_path: Path, seed: int) -> None:
    """From depth maps to the painted mesh, with photos of different exposure."""
    pytest.importorskip("open3d")
    scene = render_scene(tmp_path / "scene", DemoConfig(views=5, width=256, height=192, seed=seed))
    maps, config = DepthFolder(scene), FusionConfig(min_views=2)
    mesher = Mesher(scene, maps, "textured", config, None, 20_000)
    fuse(scene, maps, tmp_path / "cloud.ply", config, on_view=mesher.add)
    assert mesher.tsdf is not None
    vertices, faces = simplified(mesher.tsdf.surface(tmp_path / "mesh"), 20_000)
    flat = unwrap(vertices, faces, picture_size(scene, vertices, faces))
    mesh = TexturedMesh(flat.vertices, flat.faces, flat.uv, paint(scene, maps, flat, config))
    scores = [psnr(mesh, view.camera, photo_of(scene, i)) for i, view in enumerate(scene.views)]
    print(f"seed {seed}: {np.round(scores, 1)} dB")
    assert np.mean(scores) > 24, scores
