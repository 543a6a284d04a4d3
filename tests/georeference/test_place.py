"""A model whose photos know their place comes out in metres, on the map, whatever frame it had."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker, true_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle
from PIL import Image
from scipy.spatial import cKDTree

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, InputError, SceneError
from gbinet.formats.las import las_crs, read_las
from gbinet.formats.ply import read_ply
from gbinet.formats.positions import read_positions
from gbinet.fusion.fuse import FusionConfig
from gbinet.georeference.align import AlignmentError, align
from gbinet.georeference.place import PlaceConfig, place_scene, utm_zone
from gbinet.georeference.similarity import Similarity, transformed_camera, transformed_scene
from gbinet.inference.predictor import DepthConfig
from gbinet.pipeline.reconstruct import ReconstructConfig, run
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.load import load_scene

pyproj = pytest.importorskip("pyproj")
pytest.importorskip("laspy")

PLACE = np.array([576700.0, 5188100.0, 180.0])  # UTM 15N
CRS = "EPSG:32615"


def rotation(seed: int) -> np.ndarray:
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return matrix * np.sign(np.linalg.det(matrix))


# x to the east, y (down) to the ground, 25 metres a unit: the ball scene as a park of 200 m
MAP_FROM_BALL = Similarity(25.0, np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]), PLACE)


def write_gps(path: Path, utm: np.ndarray) -> None:
    """GPS into the EXIF of a photo."""
    longitude, latitude = pyproj.Transformer.from_crs(CRS, "EPSG:4326", always_xy=True).transform(*utm[:2])
    exif = Image.Exif()
    exif[0x010F] = "Maker"

    def degrees(value: float) -> tuple[float, float, float]:
        whole, rest = divmod(abs(value) * 60, 60)
        return whole, float(int(rest)), (rest - int(rest)) * 60

    gps = exif.get_ifd(0x8825)
    gps.update({1: "N" if latitude >= 0 else "S", 2: degrees(latitude)})
    gps.update({3: "E" if longitude >= 0 else "W", 4: degrees(longitude), 5: b"\0", 6: float(utm[2])})
    with Image.open(path) as image:
        image.load()
        image.save(path, exif=exif)


def with_gps(scene: Scene, noise: float, outliers: int, seed: int = 0) -> Scene:
    rng = np.random.default_rng(seed)
    wrong = set(rng.permutation(len(scene.views))[:outliers].tolist())
    for index, view in enumerate(scene.views):
        true = MAP_FROM_BALL.applied(view.camera.centre.numpy()[None])[0]
        off = rng.normal(0, noise, 3) + (rng.normal(0, 60, 3) if index in wrong else 0)
        write_gps(view.image_path, true + off)
    return scene


AS_SFM_LEAVES_IT = Similarity(0.137, rotation(5), np.array([3.0, -2.0, 7.0]))  # any frame, any unit


def true_points(scene: Scene) -> np.ndarray:
    """The surface in map coordinates, within 60 m of the ball."""
    parts = [DepthMap(true_depth(v.camera), v.camera).points()[true_depth(v.camera) > 0] for v in scene.views]
    points = torch.cat(parts).double().numpy()
    return points[np.linalg.norm(points, axis=1) < 60 / 25]


def test_noise_of_a_metre_and_two_outliers_leave_half_a_metre(ball_scene: SceneMaker) -> None:
    scene = with_gps(ball_scene(views=45), noise=1.0, outliers=2)
    _, where = place_scene(transformed_scene(scene, AS_SFM_LEAVES_IT), PlaceConfig("gps"))
    assert where.crs == CRS and len(where.outliers) == 2 and where.photos == 43
    assert where.error_across == pytest.approx(2**0.5, rel=0.3) and where.error_up == pytest.approx(
        1, rel=0.3
    )
    points = true_points(scene)
    local_from_model = np.array(where.local_from_model)
    placed = AS_SFM_LEAVES_IT.applied(points) @ local_from_model[:3, :3].T + local_from_model[:3, 3]
    off = np.linalg.norm(placed + where.offset - MAP_FROM_BALL.applied(points), axis=1)
    assert off.max() < 0.5


class MovedOracle(Oracle):
    """Answers in the unit of the scene that it is asked about."""

    def __init__(self, scene: Scene, unit: float) -> None:
        super().__init__(scene)
        self.unit = unit

    def search(self, *arguments, **options):
        found = super().search(*arguments, **options)
        return replace(found, depth=found.depth * self.unit)


@pytest.mark.parametrize(
    "views, noise, outliers", [(6, 0.0, 0), pytest.param(45, 1.0, 2, marks=pytest.mark.slow)]
)
def test_the_cloud_lies_on_the_map(ball_scene: SceneMaker, tmp_path: Path, views, noise, outliers) -> None:
    scene = with_gps(ball_scene(views=views), noise, outliers)
    model = transformed_scene(scene, AS_SFM_LEAVES_IT)
    config = ReconstructConfig(
        DepthConfig(max_size=64, views=3), FusionConfig(min_views=2), place=PlaceConfig("gps")
    )
    placed, _ = place_scene(model, config.place)
    unit = placed.views[0].depth_range.far / scene.views[0].depth_range.far
    result = run(model, MovedOracle(scene, unit), tmp_path / "out", config)  # type: ignore[arg-type]
    assert result.place is not None and result.place.crs == CRS == las_crs(tmp_path / "out" / "cloud.laz")
    on_map = read_las(tmp_path / "out" / "cloud.laz").xyz.numpy()
    near = on_map[np.linalg.norm(on_map - PLACE, axis=1) < 55]
    distance, _ = cKDTree(MAP_FROM_BALL.applied(true_points(scene))).query(near)
    assert len(near) > 500 and np.median(distance) < 0.5  # points are 0.4 to 1.5 m apart here
    local = read_ply(tmp_path / "out" / "cloud.ply").xyz.double().numpy()
    assert np.allclose(np.sort(local[:, 0] + result.place.offset[0]), np.sort(on_map[:, 0]), atol=2e-3)
    assert "EPSG:32615" in result.report.read_text()
    assert json.loads((tmp_path / "out" / "run.json").read_text())["georeference"]["crs"] == CRS


def test_a_run_in_another_frame_leaves_nothing_of_the_old_one(ball_scene: SceneMaker, tmp_path: Path) -> None:
    """On the map first, then without it: depth maps, cloud and exports are all in the new unit."""
    scene, out = with_gps(ball_scene(views=6), 0.0, 0), tmp_path / "out"
    model = transformed_scene(scene, AS_SFM_LEAVES_IT)
    depth, fusion = DepthConfig(max_size=64, views=3), FusionConfig(min_views=2)
    for georeference in ("gps", "off"):
        config = ReconstructConfig(depth, fusion, place=PlaceConfig(georeference))
        placed = place_scene(model, config.place)[0] if georeference == "gps" else model
        unit = placed.views[0].depth_range.far / scene.views[0].depth_range.far
        run(model, MovedOracle(scene, unit), out, config)  # type: ignore[arg-type]
        assert (out / "cloud.laz").exists() == (out / "georeference.json").exists() == (georeference == "gps")
    (out / "cloud.laz").write_text("mine")  # no run wrote it
    radius = read_ply(out / "cloud.ply").xyz.norm(dim=-1).median()
    assert float(radius) < 100 * AS_SFM_LEAVES_IT.scale
    found = load_scene(out)
    assert DepthFolder(found).load(0) is not None  # its camera is that of the scene
    run(model, MovedOracle(scene, unit), out, config)  # type: ignore[arg-type]
    assert (out / "cloud.laz").read_text() == "mine"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 100), st.integers(6, 40))
def test_exact_positions_give_the_exact_similarity(seed: int, scale: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    centres, move = rng.normal(size=(count, 3)), Similarity(scale, rotation(seed), rng.normal(size=3) + PLACE)
    wrong = rng.permutation(count)[: count // 5]
    targets = move.applied(centres)
    targets[wrong] += scale * rng.normal(20, 3, (len(wrong), 3))
    found = align(centres, targets)
    assert np.allclose(
        found.target_from_model.applied(centres), move.applied(centres), atol=1e-5 * scale + 1e-6
    )
    assert not found.used[wrong].any() and found.used.sum() == count - len(wrong)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_a_moved_camera_sees_the_moved_world_as_before(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation(seed + 1), rng.normal(size=3)
    K = torch.tensor([[50.0, 0, 32], [0, 60, 24], [0, 0, 1]], dtype=torch.float64)
    camera = Camera(K, torch.from_numpy(pose), 64, 48)
    points, move = rng.normal(size=(20, 3)), Similarity(scale, rotation(seed), rng.normal(size=3))
    pixels, depth = camera.project(torch.from_numpy(points))
    again, moved_depth = transformed_camera(camera, move).project(torch.from_numpy(move.applied(points)))
    assert torch.allclose(pixels, again, rtol=1e-6) and torch.allclose(depth * scale, moved_depth, rtol=1e-6)


def test_positions_that_say_too_little_are_refused_with_the_reason() -> None:
    rng = np.random.default_rng(0)
    line = np.outer(np.arange(20.0), [1, 2, 0.5])
    with pytest.raises(AlignmentError, match="one line"):
        align(line + rng.normal(0, 1e-3, line.shape), 3 * line + rng.normal(0, 0.5, line.shape))
    cloud = rng.normal(size=(20, 3))
    with pytest.raises(AlignmentError, match=r"too coarse|do not fit"):
        align(cloud, cloud * 2 + rng.normal(0, 5, cloud.shape))
    with pytest.raises(AlignmentError, match="too few"):
        align(cloud[:3], cloud[:3])
    with pytest.raises(AlignmentError, match="all the same"):
        align(cloud, np.ones_like(cloud))


@pytest.mark.parametrize("degrees", [False, True])
def test_known_positions_in_a_table(ball_scene: SceneMaker, tmp_path: Path, degrees: bool) -> None:
    scene = ball_scene(views=8)
    true = MAP_FROM_BALL.applied(np.stack([v.camera.centre.numpy() for v in scene.views]))
    rows = ["name,x,y,z"]
    if degrees:
        to_degrees = pyproj.Transformer.from_crs(CRS, "EPSG:4326", always_xy=True)
        rows = ["Label;lon;lat;alt"]
        true[:, 0], true[:, 1] = to_degrees.transform(true[:, 0], true[:, 1])
    separator = ";" if degrees else ","
    for view, place in zip(scene.views, true, strict=True):
        rows.append(separator.join([view.image_path.name, *(f"{value:.12g}" for value in place)]))
    table = tmp_path / "cameras.csv"
    table.write_text("\n".join(rows) + "\n")
    placed, where = place_scene(scene, PlaceConfig(positions=table, crs=None if degrees else CRS))
    centres = np.stack([v.camera.centre.numpy() for v in placed.views]) + where.offset
    expected = MAP_FROM_BALL.applied(np.stack([v.camera.centre.numpy() for v in scene.views]))
    assert where.crs == CRS and np.allclose(centres, expected, atol=1e-3)
    free, frame = place_scene(scene, PlaceConfig(positions=table)) if not degrees else (None, None)
    if free is not None and frame is not None:
        assert frame.crs is None and frame.offset == (0, 0, 0)


def test_two_points_and_a_length_set_the_unit(ball_scene: SceneMaker) -> None:
    scene = ball_scene(views=4)
    a, b = (scene.views[i].camera.centre.tolist() for i in (0, 3))
    placed, where = place_scene(scene, PlaceConfig(scale=(*a, *b, 12.5)))
    distance = torch.dist(placed.views[0].camera.centre, placed.views[3].camera.centre)
    assert float(distance) == pytest.approx(12.5) and where.crs is None
    ratio = placed.views[0].depth_range.far / scene.views[0].depth_range.far
    assert ratio == pytest.approx(12.5 / float(np.linalg.norm(np.subtract(a, b))))


def test_what_cannot_be_meant_is_refused(ball_scene: SceneMaker, tmp_path: Path) -> None:
    for bad in ({"scale": (0,) * 6 + (-1.0,)}, {"crs": CRS}, {"scale": (1.0,) * 7, "positions": tmp_path}):
        with pytest.raises(InputError):
            PlaceConfig(**bad)  # type: ignore[arg-type]
    scene = ball_scene(views=5)
    with pytest.raises(InputError, match="the same"):
        place_scene(scene, PlaceConfig(scale=(1.0,) * 7))
    with pytest.raises(SceneError, match="no photo has GPS"):
        place_scene(scene, PlaceConfig("gps"))
    table = tmp_path / "a.csv"
    for text, problem in (
        ("name,x,y\n", "no column z"),
        ("name,x,y,z\na,1,2\n", "line 2"),
        ("name,x,y,z\na,1,2,nan\n", "not a position"),
        ("name,lat,lon,alt\na,95,0,0\n", "not a position.*latitude within 90"),
    ):
        table.write_text(text)
        with pytest.raises(FormatError, match=problem):
            read_positions(table)
    table.write_text("name,x,y,z\nother.jpg,1,2,3\n")
    with pytest.raises(SceneError, match="names no photo"):
        place_scene(scene, PlaceConfig(positions=table))
    table.write_text(f"name,x,y,z\n{scene.views[0].image_path.name},1,2,3\n")
    with pytest.raises(InputError, match="not metres"):
        place_scene(scene, PlaceConfig(positions=table, crs="EPSG:4326"))


@pytest.mark.parametrize(
    "longitude, latitude, code", [(-92, 46.8, 32615), (18.1, -33.9, 32734), (8, 60, 32632)]
)
def test_the_zone_is_that_of_the_place(longitude: float, latitude: float, code: int) -> None:
    assert utm_zone(np.array([[longitude, latitude, 0.0]])) == f"EPSG:{code}"
