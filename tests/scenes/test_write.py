"""Every format that is written reads back as the same scene."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exact_plane import HEIGHT, WIDTH
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gbinet.camera import Camera
from gbinet.errors import InputError, SceneError
from gbinet.formats.colmap import quaternion, read_model
from gbinet.formats.depth_files import read_depth, read_depth_map
from gbinet.formats.image import read_image, read_mask
from gbinet.formats.nerfstudio import opengl_world_from_cam, read_transforms
from gbinet.formats.openmvs import read_dmap
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene, SparsePoints, View
from gbinet.scenes.kinds import write_scene, writers
from gbinet.scenes.load import load_scene
from gbinet.scenes.mvsnet import write as write_mvsnet
from gbinet.scenes.nerfstudio import write as write_nerfstudio

READABLE = ["mvsnet", "colmap", "colmap-text", "colmap-dense", "nerfstudio"]


def with_points(scene: Scene) -> Scene:
    """The scene with three points; the second is seen by no view."""
    return replace(
        scene,
        points=SparsePoints(
            xyz=torch.tensor([[0.1, 0.2, 3.0], [0, 0, 2.5], [-0.3, 0.1, 3.1]], dtype=torch.float64),
            rgb=torch.tensor([[1, 2, 3], [4, 5, 6], [250, 251, 252]], dtype=torch.uint8),
            view_index=torch.tensor([0, 2, 4, 1, 3]),
            track_start=torch.tensor([0, 3, 3, 5]),
            error=torch.tensor([0.25, -1.0, 1 / 3], dtype=torch.float64),
        ),
    )


def assert_same_views(a: Scene, b: Scene, tolerance: float = 1e-9) -> None:
    assert len(a.views) == len(b.views)
    for x, y in zip(a.views, b.views, strict=True):
        assert (x.camera.width, x.camera.height) == (y.camera.width, y.camera.height)
        assert (x.camera.K - y.camera.K).abs().max() <= tolerance
        assert (x.camera.cam_from_world - y.camera.cam_from_world).abs().max() <= tolerance
        assert np.array_equal(read_image(x.image_path), read_image(y.image_path))
        assert (x.mask_path is None) == (y.mask_path is None)
        if x.mask_path is not None and y.mask_path is not None:
            assert np.array_equal(
                read_mask(x.mask_path, (WIDTH, HEIGHT)), read_mask(y.mask_path, (WIDTH, HEIGHT))
            )


@pytest.mark.parametrize("kind", READABLE)
def test_scene_comes_back(tmp_path, plane_scene, kind):
    scene, depth_maps = with_points(plane_scene[0]), plane_scene[1]
    if kind == "colmap-dense":  # a workspace has no place for masks
        scene = replace(scene, views=tuple(replace(view, mask_path=None) for view in scene.views))
    write_scene(scene, tmp_path / "out", kind, zip(scene.views, depth_maps, strict=True))
    back = load_scene(tmp_path / "out")
    assert back.kind == kind.split("-")[0]
    assert_same_views(scene, back)
    if kind != "mvsnet":  # which numbers its views
        names = [view.name.removeprefix("images_") for view in back.views]  # nerfstudio names them by path
        assert names == [view.name for view in scene.views]
    if kind in ("mvsnet", "nerfstudio"):
        for view, depth_map in zip(back.views, depth_maps, strict=True):
            read = read_depth_map(view.depth_path, view.camera, view.depth_scale)
            assert (read.depth - depth_map.depth).abs().max() <= (0.00051 if kind == "nerfstudio" else 0)
    if kind != "mvsnet":
        assert torch.equal(back.points.xyz, scene.points.xyz)
        assert torch.equal(back.points.rgb, scene.points.rgb)
    if kind.startswith("colmap"):
        assert torch.equal(back.points.view_index, scene.points.view_index)
        assert torch.equal(back.points.track_start, scene.points.track_start)
        assert torch.equal(back.points.error, scene.points.error)


def test_mvsnet_keeps_ranges_and_pairs_exactly(tmp_path, plane_scene):
    scene, _ = plane_scene
    back = load_scene(write_mvsnet(scene, tmp_path))
    assert [v.depth_range for v in back.views] == [v.depth_range for v in scene.views]
    assert [v.sources for v in back.views] == [v.sources for v in scene.views]
    assert_same_views(scene, back, tolerance=0)


angles = st.floats(-4, 4)
numbers = st.floats(-1e4, 1e4)


def rotation(a: float, b: float, c: float) -> torch.Tensor:
    skew = torch.tensor([[0, -c, b], [c, 0, -a], [-b, a, 0]], dtype=torch.float64)
    return torch.linalg.matrix_exp(skew)


@given(angles, angles, angles)
def test_quaternions_are_the_rotation(a, b, c):
    expected = rotation(a, b, c)
    w, x, y, z = quaternion(expected.numpy())
    assert w >= 0 and abs(w * w + x * x + y * y + z * z - 1) < 1e-12
    result = torch.tensor(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ],
        dtype=torch.float64,
    )
    assert (result - expected).abs().max() < 1e-12


def json_of(view: View) -> dict:
    return {
        "file_path": "a.png",
        "fl_x": 1.0,
        "fl_y": 1.0,
        "cx": 0.5,
        "cy": 0.5,
        "w": 1,
        "h": 1,
        "transform_matrix": opengl_world_from_cam(view).tolist(),
    }


@given(angles, angles, angles, numbers, numbers, numbers)
def test_nerfstudio_axes_and_back(tmp_path_factory, a, b, c, x, y, z):
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = rotation(a, b, c)
    pose[:3, 3] = torch.tensor([x, y, z])
    view = View("a", Camera(torch.eye(3, dtype=torch.float64), pose, 1, 1), Path("a.png"))
    path = tmp_path_factory.mktemp("ns") / "transforms.json"
    path.write_text(json.dumps({"frames": [json_of(view)]}))
    back = torch.from_numpy(read_transforms(path).frames[0].cam_from_world)
    assert (back[:3, :3] - pose[:3, :3]).abs().max() < 1e-9
    assert (back[:3, 3] - pose[:3, 3]).abs().max() < 1e-9 * max(1, abs(x), abs(y), abs(z))


def test_nerfstudio_axes_are_opengl():
    """A camera at the origin that looks along the world's z has, in OpenGL, y up and z backwards."""
    view = View("a", Camera(torch.eye(3), torch.eye(4), 1, 1), Path("a.png"))
    assert opengl_world_from_cam(view).diagonal().tolist() == [1, -1, -1, 1]


def test_colmap_text_is_binary_and_pycolmap_reads_both(tmp_path, plane_scene):
    pycolmap = pytest.importorskip("pycolmap")
    scene = with_points(plane_scene[0])
    models = {}
    for kind in ("colmap", "colmap-text"):
        write_scene(scene, tmp_path / kind, kind)
        models[kind] = pycolmap.Reconstruction(tmp_path / kind / "sparse" / "0")
    for model in models.values():
        assert model.num_images() == 5 and model.num_points3D() == 3 and model.num_cameras() == 1
        for index, view in enumerate(scene.views):
            image = model.images[index + 1]
            assert image.name == f"{view.name}.png"
            matrix = image.cam_from_world().matrix()
            assert np.abs(matrix - view.camera.cam_from_world[:3].numpy()).max() < 1e-12
            assert np.array_equal(image.camera.calibration_matrix(), view.camera.K.numpy())
            for point in image.points2D:  # observations lie where COLMAP itself projects the points
                expected = image.project_point(model.points3D[point.point3D_id].xyz)
                assert np.abs(point.xy - expected).max() < 1e-9
        assert [len(model.points3D[i].track.elements) for i in (1, 2, 3)] == [3, 0, 2]
        assert [model.points3D[i].error for i in (1, 2, 3)] == scene.points.error.tolist()
    a, b = (
        read_model(tmp_path / kind / "sparse" / "0", observations=True) for kind in ("colmap", "colmap-text")
    )
    for x, y in zip(a.images, b.images, strict=True):
        assert np.array_equal(x.cam_from_world, y.cam_from_world) and np.array_equal(x.pixels, y.pixels)
    assert np.array_equal(a.points.xyz, b.points.xyz) and np.array_equal(
        a.points.image_ids, b.points.image_ids
    )


def test_views_with_their_own_intrinsics_keep_them(tmp_path, plane_scene):
    scene, _ = plane_scene
    views = list(scene.views)
    K = views[1].camera.K.clone()
    K[0, 0] += 1
    views[1] = replace(views[1], camera=replace(views[1].camera, K=K))
    scene = replace(scene, views=tuple(views))
    for kind in READABLE:
        write_scene(scene, tmp_path / kind, kind)
        back = load_scene(tmp_path / kind)
        assert [round(float(v.camera.K[0, 0])) for v in back.views] == [90, 91, 90, 90, 90]


def test_openmvs_folder(tmp_path, plane_scene):
    scene, depth_maps = with_points(plane_scene[0]), plane_scene[1]
    write_scene(scene, tmp_path, "openmvs", zip(scene.views, depth_maps, strict=True))
    third = read_dmap(tmp_path / "depth0002.dmap")
    assert (tmp_path / third.image_name).is_file() and third.view_ids == (2, 1, 3, 0, 4)
    assert np.array_equal(third.depth, depth_maps[2].depth.numpy())
    assert torch.allclose(third.image_camera.K, scene.views[2].camera.K)
    data = (tmp_path / "scene.mvs").read_bytes()
    assert data[:12] == b"MVSI\x05\0\0\0\0\0\0\0"
    # 5 platforms, 5 images, 3 points with 5 observations, colours, transform: every byte is accounted for.
    platform = (8 + 6) + 8 + (8 + 6) + 8 + 8 + 168 + 8 + 96
    images = sum(
        8 + len(f"images/view_{i}.png") + 8 + (len(f"masks/view_{i}.png") if i % 2 else 0) + 16
        for i in range(5)
    )
    assert len(data) == 12 + 8 + 5 * platform + 8 + images + (8 + 3 * 20 + 5 * 8) + 8 + (8 + 9) + 24 + 128


def test_nerfstudio_files(tmp_path, plane_scene):
    scene, depth_maps = plane_scene
    cloud = PointCloud(torch.rand(7, 3), torch.zeros(7, 3, dtype=torch.uint8))
    write_nerfstudio(scene, tmp_path, list(zip(scene.views, depth_maps, strict=True))[:2], cloud)
    contents = json.loads((tmp_path / "transforms.json").read_text())
    frames = contents["frames"]
    assert contents["fl_x"] == 90 and contents["w"] == WIDTH and contents["ply_file_path"] == "points.ply"
    assert len(PointCloud.load(tmp_path / "points.ply")) == 7
    assert [("depth_file_path" in f, "mask_path" in f) for f in frames] == [
        (True, False), (True, True), (False, False), (False, True), (False, False)
    ]  # fmt: skip
    stored = np.asarray(Image.open(tmp_path / frames[0]["depth_file_path"]))
    assert np.abs(stored / 1000 - depth_maps[0].depth.numpy()).max() < 0.00051
    far = tuple(replace(v, depth_range=replace(v.depth_range, far=900.0)) for v in scene.views)
    write_nerfstudio(replace(scene, views=far), tmp_path / "b", [(far[0], depth_maps[0])])
    assert np.allclose(read_depth(tmp_path / "b" / "depths" / "view_0.npy", 0.001), depth_maps[0].depth)


def test_turned_and_transparent_photos_are_written_as_seen(tmp_path, plane_scene):
    scene, _ = plane_scene
    pixels = read_image(scene.views[0].image_path)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels[::-1, ::-1].copy()).save(tmp_path / "turned.png", exif=exif)
    alpha = np.full((HEIGHT, WIDTH, 1), 255, np.uint8)
    Image.fromarray(np.concatenate([pixels, alpha], -1)).save(tmp_path / "alpha.png")
    views = [
        replace(scene.views[0], image_path=tmp_path / "turned.png"),
        replace(scene.views[1], image_path=tmp_path / "alpha.png", mask_path=tmp_path / "alpha.png"),
    ]
    views = [replace(view, sources=()) for view in views]
    write_mvsnet(replace(scene, views=tuple(views)), tmp_path / "out")
    for number in range(2):
        with Image.open(tmp_path / "out" / "images" / f"{number:08d}.png") as image:
            assert image.mode == "RGB" and np.array_equal(np.asarray(image), pixels)


def test_what_cannot_be_written_is_refused(tmp_path, plane_scene):
    scene, _ = plane_scene
    first = scene.views[0]
    for name in ("../../evil", "/etc/evil", "a\\b", "", "."):
        bad = replace(scene, views=(replace(first, name=name, sources=()),))
        for kind in ("colmap", "nerfstudio", "openmvs"):
            with pytest.raises(InputError, match="name"):
                write_scene(bad, tmp_path / "out", kind)
    K = first.camera.K.clone()
    K[0, 1] = 5
    skewed = replace(scene, views=(replace(first, camera=replace(first.camera, K=K), sources=()),))
    for kind in ("colmap", "nerfstudio"):
        with pytest.raises(InputError, match="skewed"):
            write_scene(skewed, tmp_path / "out2", kind)
    with pytest.raises(SceneError, match="depth range"):
        write_mvsnet(replace(scene, views=(replace(first, depth_range=None, sources=()),)), tmp_path / "out3")
    with pytest.raises(InputError, match="not a format"):
        write_scene(scene, tmp_path, "vrml")
    with pytest.raises(InputError, match="no views"):
        write_scene(replace(scene, views=()), tmp_path, "mvsnet")
    assert set(writers()) == {*READABLE, "openmvs", "depth-png", "depth-exr"}
    assert not (tmp_path.parent / "evil.png").exists()
