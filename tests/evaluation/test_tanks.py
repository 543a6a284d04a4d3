"""Tanks and Temples: file formats, alignment, the score of known clouds, the upload folder."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.errors import FormatError, GBiNetError, InputError, SceneError
from gbinet.evaluation.align import align_matches, fit_similarity, icp, transformed
from gbinet.evaluation.cloud import voxel_means
from gbinet.evaluation.tanks import TAU, evaluate_scene, load_reference, pack_upload
from gbinet.formats.ply import write_ply
from gbinet.formats.tanks import CropVolume, read_crop, read_log, read_mapping, write_log
from gbinet.pointcloud import PointCloud
from gbinet.scenes.tanks import scenes


def similarity(seed: int, scale: float, shift: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = rng.normal(0, shift, 3)
    return matrix


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 100), count=st.integers(4, 50))
def test_fit_recovers_a_similarity(seed, scale, count):
    truth = similarity(seed, scale)
    source = np.random.default_rng(seed).normal(size=(count, 3))
    assert np.allclose(fit_similarity(source, transformed(source, truth)), truth, atol=1e-8 * max(1, scale))


def test_fit_never_mirrors():
    source = np.random.default_rng(0).normal(size=(30, 3))
    matrix = fit_similarity(source, source * [1, 1, -1])
    assert np.linalg.det(matrix[:3, :3]) > 0


def test_ransac_ignores_wrong_cameras():
    rng = np.random.default_rng(1)
    truth = similarity(5, 2.5)
    source = rng.normal(0, 4, (60, 3))
    target = transformed(source, truth)
    target[:20] += rng.normal(0, 30, (20, 3))
    assert np.allclose(align_matches(source, target, max_error=0.2), truth, atol=1e-9)
    with pytest.raises(InputError, match="same order"):
        align_matches(source, rng.normal(0, 1e4, (60, 3)), max_error=1e-3, max_trials=50)
    with pytest.raises(InputError, match="equal length"):
        align_matches(source[:5], target[:5], max_error=0.2)


def surface(seed: int, count: int) -> np.ndarray:
    """Points on a bumpy patch about 2 wide: no similarity maps it onto itself."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-1, 1, (2, count))
    return np.stack([x, y, 0.3 * np.sin(3 * x) * np.cos(2 * y + 0.5) + 0.1 * x], axis=1)


def test_icp_undoes_a_small_motion():
    target = surface(0, 4000)
    motion = np.eye(4)
    motion[:3, :3] *= 1.01
    motion[:3, 3] = [0.01, -0.008, 0.012]
    source = transformed(target, np.linalg.inv(motion))
    found = icp(source, target, max_distance=0.2, iterations=60)
    assert np.abs(transformed(source, found) - target).max() < 2e-3


# ---- files ------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6))
def test_log_round_trip(tmp_path_factory, seed, count):
    poses = np.stack([similarity(seed + k, 1.0) for k in range(count)])
    path = write_log(tmp_path_factory.mktemp("log") / "a.log", poses)
    assert np.allclose(read_log(path), poses, atol=1e-11)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no camera poses"),
        ("0 0 0\n1 0 0 0\n", "5 lines"),
        ("0 0 0\n1 0 0 0\n0 1 0 0\n0 0 1 x\n0 0 0 1\n", "line 4"),
        ("0 0 0\n1 0 0 0\n0 1 0 0\n0 0 1 nan\n0 0 0 1\n", "not finite"),
        ("0 0 0\n1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 7\n", "last row"),
        ("0 0\n1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n", "line 1"),
    ],
)
def test_broken_logs(tmp_path, text, message):
    path = tmp_path / "a.log"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_log(path)


def test_mapping(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text("3\n90\n0 1\n1 31\n2 90\n")
    assert read_mapping(path).tolist() == [0, 30, 89]
    path.write_text("3\n80\n0 1\n1 31\n2 90\n")
    with pytest.raises(FormatError, match="frame numbers"):
        read_mapping(path)


def crop_json(**change: object) -> str:
    content = {
        "class_name": "SelectionPolygonVolume",
        "orthogonal_axis": "Y",
        "axis_min": -1.0,
        "axis_max": 2.0,
        "bounding_polygon": [[0, 0, 0], [4, 0, 0], [4, 0, 4], [2, 0, 1], [0, 0, 4]],
    }
    return json.dumps({k: v for k, v in (content | change).items() if v is not None})


def test_crop_is_even_odd_and_extruded(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(crop_json())
    points = np.array(
        [[1, 0, 1], [2, 0, 0.5], [2, 0, 3.0], [1, 2.5, 1], [1, -1, 1], [9, 0, 1], [3.9, 2, 3.5]]
    )
    assert read_crop(path).contains(points).tolist() == [True, True, False, False, True, False, True]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), corners=st.integers(3, 9))
def test_crop_agrees_with_winding_of_a_convex_polygon(seed, corners):
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, corners))
    polygon = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = np.column_stack([rng.uniform(-1.2, 1.2, (50, 2)), np.zeros(50)])
    edges = np.roll(polygon, -1, axis=0) - polygon
    to_point = points[:, None, :2] - polygon
    left = (edges[:, 0] * to_point[..., 1] - edges[:, 1] * to_point[..., 0] > 0).all(axis=1)
    assert np.array_equal(CropVolume(2, -1, 1, polygon).contains(points), left)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        (crop_json(orthogonal_axis="W"), "orthogonal_axis"),
        (crop_json(axis_min=3.0), "below axis_max"),
        (crop_json(axis_max=None), "axis_max"),
        (crop_json(bounding_polygon=[[0, 0, 0]]), "3 or more"),
        (crop_json(bounding_polygon="no"), "bounding_polygon"),
    ],
)
def test_broken_crops(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_crop(path)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 100), size=st.sampled_from([0.1, 0.7, 10.0]))
def test_voxel_means_equal_a_dictionary(seed, count, size):
    points = np.random.default_rng(seed).normal(size=(count, 3))
    low = points.min(axis=0) - size / 2
    cells: dict[tuple[float, ...], list[np.ndarray]] = {}
    for p in points:
        cells.setdefault(tuple(np.floor((p - low) / size)), []).append(p)
    expected = np.array(sorted(np.mean(v, axis=0).tolist() for v in cells.values()))
    found = np.array(sorted(voxel_means(points, size).tolist()))
    assert np.allclose(found, expected)


# ---- the whole protocol -----------------------------------------------------------------------------------


def write_scene(root: Path, scan: np.ndarray, centres: np.ndarray) -> Path:
    folder = root / "Truck"
    write_ply(folder / "Truck.ply", PointCloud(torch.from_numpy(scan)))
    volume = {"orthogonal_axis": "Z", "axis_min": -1, "axis_max": 1}
    corners = [[-0.9, -0.9, 0], [0.9, -0.9, 0], [0.9, 0.9, 0], [-0.9, 0.9, 0]]
    (folder / "Truck.json").write_text(json.dumps(volume | {"bounding_polygon": corners}))
    reference_from_scan = similarity(9, 0.7)  # the reference trajectory has its own frame
    poses = np.tile(np.eye(4), (len(centres), 1, 1))
    poses[:, :3, 3] = transformed(centres, reference_from_scan)
    write_log(folder / "Truck_COLMAP_SfM.log", poses)
    np.savetxt(folder / "Truck_trans.txt", np.linalg.inv(reference_from_scan))
    return folder


def test_a_displaced_cloud_of_known_quality(tmp_path):
    """All points are right, but a strip is missing: precision 1, recall the share that is left."""
    scan = surface(0, 60_000)
    centres = np.random.default_rng(2).uniform(-2, 2, (20, 3))
    reference = load_reference(write_scene(tmp_path, scan, centres), tau=0.02)
    world_from_scan = similarity(4, 5.0)
    cloud = transformed(scan[scan[:, 0] < 0.45], world_from_scan)
    poses = np.tile(np.eye(4), (20, 1, 1))
    poses[:, :3, 3] = transformed(
        centres + np.random.default_rng(3).normal(0, 2e-3, (20, 3)), world_from_scan
    )
    score, distances = evaluate_scene(cloud, poses, reference)
    assert score.precision > 0.999
    assert score.scale == pytest.approx(1 / 5.0, rel=1e-3)
    # Surface points up to tau beyond the cut at 0.45 still count as found.
    x = distances.truth[:, 0]
    assert (x < 0.44).mean() - 0.01 <= score.recall <= (x < 0.45 + 0.02).mean() + 0.01
    assert score.fscore == pytest.approx(
        2 * score.precision * score.recall / (score.precision + score.recall)
    )


def test_wrong_trajectories_and_folders(tmp_path):
    scan, centres = surface(0, 3000), np.random.default_rng(2).uniform(-2, 2, (20, 3))
    folder = write_scene(tmp_path, scan, centres)
    reference = load_reference(folder)
    assert reference.tau == TAU["Truck"] == 0.005
    with pytest.raises(InputError, match="12 poses, Truck has 20 images"):
        evaluate_scene(scan, np.tile(np.eye(4), (12, 1, 1)), reference)
    poses = np.tile(np.eye(4), (20, 1, 1))
    poses[:, :3, 3] = centres + np.array([50, 0, 0])
    with pytest.raises(InputError, match="crop volume"):
        evaluate_scene(scan, poses, reference)
    with pytest.raises(InputError, match="no points"):
        evaluate_scene(np.zeros((0, 3)), poses, reference)
    with pytest.raises(SceneError, match="no threshold"):
        load_reference(folder.rename(tmp_path / "Boat"))
    with pytest.raises(SceneError, match="no such folder"):
        load_reference(tmp_path / "Barn")


def test_upload_folder(tmp_path):
    clouds, logs = {}, {}
    for name in scenes("advanced"):
        clouds[name] = write_ply(tmp_path / name / "cloud.ply", PointCloud(torch.rand(5, 3)))
        logs[name] = write_log(tmp_path / name / "cameras.log", np.eye(4)[None])
    written = pack_upload(clouds, logs, tmp_path / "up", "advanced")
    assert sorted(p.name for p in (tmp_path / "up").iterdir()) == sorted(p.name for p in written)
    lines = (tmp_path / "up" / "md5_check.txt").read_text().splitlines()
    assert len(lines) == 12
    name, checksum = lines[0].split("###")
    digest = hashlib.md5((tmp_path / "up" / name).read_bytes()).digest()
    assert base64.b64decode(checksum) == digest
    with pytest.raises(SceneError, match="Family"):
        pack_upload(clouds, logs, tmp_path / "up", "both")
    with pytest.raises(GBiNetError, match="not a split"):
        pack_upload(clouds, logs, tmp_path / "up", "training")
    write_ply(clouds["Palace"], PointCloud(torch.zeros(0, 3)))
    with pytest.raises(FormatError, match="no points"):
        pack_upload(clouds, logs, tmp_path / "up", "advanced")
