"""COLMAP models: what pycolmap wrote is what we read, in both encodings and for every camera model."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gbinet.camera import Camera
from gbinet.errors import FormatError
from gbinet.formats.colmap import MODELS, ColmapModel, read_model

pycolmap = pytest.importorskip("pycolmap")


def synthetic(folder: Path) -> Any:
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = (
        2,
        2,
        3,
    )  # rigs with two cameras
    options.num_points3D = 40
    model = pycolmap.synthesize_dataset(options)
    for kind, write in {"bin": model.write_binary, "txt": model.write_text}.items():
        (folder / kind).mkdir()
        write(folder / kind)
    return model


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("colmap")
    return folder, synthetic(folder)


def check_against_pycolmap(model: ColmapModel, witness: Any) -> None:
    assert {i.name for i in model.images} == {i.name for i in witness.images.values()}
    for image in model.images:
        other = witness.images[image.id]
        assert image.camera_id == other.camera_id
        assert np.allclose(image.cam_from_world[:3], other.cam_from_world().matrix(), rtol=0, atol=1e-12)
        assert image.pixels is not None and image.point_ids is not None
        assert np.array_equal(image.pixels, np.array([p.xy for p in other.points2D]))
        ids = [p.point3D_id if p.has_point3D() else -1 for p in other.points2D]
        assert image.point_ids.tolist() == ids
    for camera in model.cameras.values():
        other = witness.cameras[camera.id]
        assert (camera.model, camera.width, camera.height) == (other.model.name, other.width, other.height)
        assert np.array_equal(camera.params, other.params)
        assert np.allclose(camera.K, other.calibration_matrix())
    points = model.points
    assert set(points.ids.tolist()) == set(witness.points3D)
    for row, id in enumerate(points.ids.tolist()):
        other = witness.points3D[id]
        assert np.array_equal(points.xyz[row], other.xyz) and np.array_equal(points.rgb[row], other.color)
        track = points.image_ids[points.track_start[row] : points.track_start[row + 1]]
        assert track.tolist() == [element.image_id for element in other.track.elements]


@pytest.mark.parametrize("kind", ["bin", "txt"])
def test_reads_what_pycolmap_wrote(written: tuple[Path, Any], kind: str) -> None:
    folder, witness = written
    assert (folder / kind / f"rigs.{kind}").is_file()  # the new layout
    check_against_pycolmap(read_model(folder / kind, observations=True), witness)


@pytest.mark.parametrize("kind", ["bin", "txt"])
def test_old_layout_without_rigs_and_points(written: tuple[Path, Any], kind: str, tmp_path: Path) -> None:
    for name in ("cameras", "images"):
        (tmp_path / f"{name}.{kind}").write_bytes((written[0] / kind / f"{name}.{kind}").read_bytes())
    model = read_model(tmp_path)
    assert len(model.images) == 12 and len(model.points.xyz) == 0
    assert all(image.pixels is None for image in model.images)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["bin", "txt"])
def test_every_camera_model(name: str, kind: str, tmp_path: Path) -> None:
    camera = pycolmap.Camera.create_from_model_name(7, name, 500.0, 640, 480)
    camera.params = [p + 0.001 * i for i, p in enumerate(camera.params)]
    model = pycolmap.Reconstruction()
    model.add_camera_with_trivial_rig(camera) if hasattr(
        model, "add_camera_with_trivial_rig"
    ) else model.add_camera(camera)
    (model.write_binary if kind == "bin" else model.write_text)(tmp_path)
    read = read_model(tmp_path).cameras[7]
    assert read.model == name and MODELS[name].id == int(camera.model)
    assert np.array_equal(read.params, camera.params)
    assert np.allclose(read.K, camera.calibration_matrix())


def test_resized_camera_projects_to_resized_pixels() -> None:
    camera = pycolmap.Camera.create_from_model_name(1, "OPENCV", 500.0, 640, 480)
    from gbinet.formats.colmap import ColmapCamera

    params = np.array([500.0, 510, 320, 245, 0.1, -0.02, 0.001, 0.002])
    camera.params = params.tolist()
    half = ColmapCamera(1, "OPENCV", 640, 480, params).resized(320, 240)
    small = pycolmap.Camera(model="OPENCV", width=320, height=240, params=half.params.tolist())
    rays = np.array([[0.1, -0.2, 1.0], [0.3, 0.2, 1.0]])
    assert np.allclose(small.img_from_cam(rays) * 2, camera.img_from_cam(rays))


def test_fountain_pixels_warp_onto_each_other(shared: Path) -> None:
    """A point's pixel in one view, lifted by its sparse depth, lands on its pixel in every other view."""
    model = read_model(shared / "scenes" / "fountain-P11" / "sparse", observations=True)
    assert len(model.images) == 11 and len(model.points.xyz) == 13_974
    xyz = dict(zip(model.points.ids.tolist(), torch.from_numpy(model.points.xyz), strict=True))
    cameras, pixel_of = [], []
    for image in model.images:
        assert image.pixels is not None and image.point_ids is not None
        lens = model.cameras[image.camera_id]
        pose = torch.from_numpy(image.cam_from_world)
        cameras.append(Camera(torch.from_numpy(lens.K), pose, lens.width, lens.height))
        pixels = torch.from_numpy(image.pixels)
        pixel_of.append({id: pixels[i] for i, id in enumerate(image.point_ids.tolist()) if id >= 0})
    errors = []
    for ref, src in itertools.permutations(range(11), 2):
        common = sorted(pixel_of[ref].keys() & pixel_of[src].keys())
        if not common:
            continue
        _, depth = cameras[ref].project(torch.stack([xyz[id] for id in common]))
        lifted = cameras[ref].unproject(torch.stack([pixel_of[ref][id] for id in common]), depth)
        warped, _ = cameras[src].project(lifted)
        errors.append((warped - torch.stack([pixel_of[src][id] for id in common])).norm(dim=-1))
    median = float(torch.cat(errors).median())
    print(f"median {median:.3f} px over {len(torch.cat(errors)):,} pairs")  # shown with -s
    assert median < 0.5


def broken(folder: Path, source: Path, name: str, change: Any) -> Path:
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / name).write_bytes(change((source / name).read_bytes()))
    return folder


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cameras.bin", lambda b: b[:-1], r"cameras\.bin, byte \d+: cut short"),
        ("cameras.bin", lambda b: struct.pack("<Q", 2**60) + b[8:], r"byte 8: claims \d+ cameras"),
        ("cameras.bin", lambda b: b[:12] + struct.pack("<i", 99) + b[16:], "unsupported model 99"),
        ("images.bin", lambda b: struct.pack("<Q", 2**40) + b[8:], r"images\.bin, byte 8: claims"),
        ("images.bin", lambda b: b[: len(b) // 2], r"images\.bin, byte \d+"),
        ("points3D.bin", lambda b: b[:60], r"points3D\.bin, byte"),
        ("points3D.bin", lambda b: b[:51] + b"\xff" * 8 + b[59:], r"byte 8: a point claims to be seen"),
    ],
)
def test_lying_headers(
    written: tuple[Path, Any], tmp_path: Path, name: str, change: Any, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        read_model(broken(tmp_path, written[0] / "bin", name, change))


def test_text_errors_name_the_line(written: tuple[Path, Any], tmp_path: Path) -> None:
    def spoil(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[5] = lines[5].replace(b" ", b" x", 1)
        return b"\n".join(lines)

    for name in ("images.txt", "points3D.txt"):
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(FormatError, match=rf"{name}, line \d+"):
            read_model(broken(folder, written[0] / "txt", name, spoil), observations=True)
