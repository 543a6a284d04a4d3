"""DTU's protocol: closed forms, a scan in DTU's own file formats against brute force, hostile files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gbinet.errors import FormatError, GBiNetError, InputError, SceneError
from gbinet.evaluation.dtu import (
    DTUProtocol,
    DTUReference,
    evaluate_scan,
    find_cloud,
    load_reference,
    mean_score,
)
from gbinet.formats.dtu import ObservedVolume, read_observed_volume, read_plane
from gbinet.formats.ply import write_ply
from gbinet.pointcloud import PointCloud
from gbinet.scenes.dtu import TEST

scipy_io = pytest.importorskip("scipy.io")

NO_THINNING = DTUProtocol(thinning=0.0)


def everything_observed(points: np.ndarray) -> DTUReference:
    """A reference whose box, mask and table exclude nothing."""
    bounds = np.array([[-100.0, -100, -100], [100, 100, 100]])
    mask = np.ones((21, 21, 21), dtype=bool)
    return DTUReference(ObservedVolume(mask, bounds, 10.0), np.array([0.0, 0, 1, 1000]), points)


def plane(z: float, spacing: float = 1.0) -> np.ndarray:
    x, y = np.meshgrid(np.arange(-20, 20, spacing), np.arange(-20, 20, spacing))
    return np.stack([x.ravel(), y.ravel(), np.full(x.size, z)], axis=1)


@pytest.mark.parametrize("offset", [0.0, 0.25, 3.5])
def test_parallel_planes(offset):
    score, _ = evaluate_scan(plane(offset), everything_observed(plane(0)))
    assert score.accuracy == pytest.approx(offset, abs=1e-12)
    assert score.completeness == pytest.approx(offset, abs=1e-12)
    assert score.overall == score.accuracy_median == pytest.approx(offset, abs=1e-12)
    assert score.thinned == score.points == 1600  # 1 mm apart: thinning removes nothing


def test_half_a_plane_with_outliers():
    """Points at 20 mm and more do not count; the missing half is far from the cloud by known amounts."""
    half = plane(0.5)
    half = half[half[:, 0] < 0]
    far = plane(20.0)[:7]
    score, distances = evaluate_scan(np.concatenate([half, far]), everything_observed(plane(0)))
    assert score.accuracy == pytest.approx(0.5)
    assert score.observed == len(half) + 7
    missing = np.arange(0, 20) + 1.0  # distance in x to the cloud's edge at x = -1
    expected = np.concatenate([np.full(20, 0.5), np.hypot(missing, 0.5)])
    assert score.completeness == pytest.approx(expected[expected < 20].mean())
    assert (distances.to_truth == 20).sum() == 7  # exactly 20 mm is found, but not counted


def test_spheres_of_known_radii():
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(4000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    score, _ = evaluate_scan(directions * 31.5, everything_observed(directions * 30.0), NO_THINNING)
    # Along each ray the other sphere is 1.5 away, and no point of it can be nearer.
    assert score.accuracy == pytest.approx(1.5, abs=1e-9)
    assert score.completeness == pytest.approx(1.5, abs=1e-9)


# ---- a scan written in DTU's own formats ------------------------------------------------------------------


def write_scan(folder: Path, scan: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Random blobs with a box, a mask with holes and a slanted table; the cloud and the raw contents."""
    rng = np.random.default_rng(seed)
    raw = {
        "ObsMask": (rng.random((12, 10, 9)) < 0.6).astype(np.uint8),
        "BB": np.array([[-30.25, -25.5, 400.0], [25.0, 21.0, 441.0]]),
        "Res": np.array([[4.9]]),
        "P": np.array([[0.1], [0.05], [1.0], [-418.0]]),
        "stl": rng.normal([0, 0, 420], [25, 20, 12], (700, 3)).astype(np.float32),
    }
    (folder / "ObsMask").mkdir(parents=True, exist_ok=True)
    contents = {name: raw[name] for name in ("ObsMask", "BB", "Res")}
    scipy_io.savemat(folder / "ObsMask" / f"ObsMask{scan}_10.mat", contents, do_compression=True)
    scipy_io.savemat(folder / "ObsMask" / f"Plane{scan}.mat", {"P": raw["P"]})
    truth = PointCloud(torch.from_numpy(raw["stl"]))
    write_ply(folder / "Points" / "stl" / f"stl{scan:03}_total.ply", truth)
    cloud = rng.normal([1, 2, 421], [25, 20, 18], (900, 3)).astype(np.float32)
    cloud[:30] += 300  # outside of everything
    return cloud, raw


def brute_force(cloud: np.ndarray, raw: dict[str, np.ndarray]) -> dict[str, float]:
    """The protocol once more, point by point, as the text of the benchmark says it."""

    def gap(p, others):
        return min(float(np.sqrt(((p - q) ** 2).sum())) for q in others)

    low, high, res = raw["BB"][0], raw["BB"][1], raw["Res"][0, 0]
    stl = [q.astype(np.float64) for q in raw["stl"]]
    data_in = [
        p for p in cloud.astype(np.float64) if all(low[k] - 60 <= p[k] < high[k] + 120 for k in range(3))
    ]
    to_stl = []
    for p in data_in:
        voxel = [round((p[k] - low[k]) / res) for k in range(3)]
        inside = all(0 <= voxel[k] < raw["ObsMask"].shape[k] for k in range(3))
        if inside and raw["ObsMask"][tuple(voxel)] == 1:
            to_stl.append(gap(p, stl))
    to_data = [gap(q, data_in) for q in stl if float(raw["P"][:3, 0] @ q + raw["P"][3, 0]) > 0]
    a, c = [d for d in to_stl if d < 20], [d for d in to_data if d < 20]
    return {
        "accuracy": float(np.mean(a)),
        "completeness": float(np.mean(c)),
        "overall": float(np.mean(a) + np.mean(c)) / 2,
        "accuracy_median": float(np.median(a)),
        "completeness_median": float(np.median(c)),
        "observed": len(to_stl),
        "reference": len(to_data),
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_files_of_dtu_against_brute_force(tmp_path, seed):
    cloud, raw = write_scan(tmp_path, 9, seed)
    score, _ = evaluate_scan(cloud, load_reference(tmp_path, 9), NO_THINNING)
    expected = brute_force(cloud, raw)
    assert 100 < expected["observed"] < 800 and 100 < expected["reference"] < 690  # each rule bites
    for name, value in expected.items():
        assert getattr(score, name) == pytest.approx(value, abs=1e-9), name


def test_thinning_happens_before_everything(tmp_path):
    cloud, _ = write_scan(tmp_path, 9, 0)
    reference = load_reference(tmp_path, 9)
    doubled = np.repeat(cloud, 5, axis=0)
    once, _ = evaluate_scan(cloud, reference, DTUProtocol(thinning=1e-6))
    again, _ = evaluate_scan(doubled, reference, DTUProtocol(thinning=1e-6))
    assert again.thinned == once.thinned == len(cloud) and again.points == 5 * len(cloud)
    assert again.overall == pytest.approx(once.overall, abs=1e-12)


def test_mean_of_means(tmp_path):
    scores = []
    for scan, seed in ((1, 3), (4, 4)):
        cloud, _ = write_scan(tmp_path, scan, seed)
        scores.append(evaluate_scan(cloud, load_reference(tmp_path, scan))[0])
    mean = mean_score(scores)
    assert mean.overall == pytest.approx((scores[0].overall + scores[1].overall) / 2)
    assert mean.points == scores[0].points + scores[1].points
    with pytest.raises(InputError, match="no scans"):
        mean_score([])


def test_there_are_22_test_scans():
    assert len(set(TEST)) == 22 and sum(TEST) == 903  # added up by hand from the published list


# ---- hostile input ----------------------------------------------------------------------------------------


def test_clouds_that_cannot_be_measured():
    reference = everything_observed(plane(0))
    with pytest.raises(InputError, match="no points"):
        evaluate_scan(np.zeros((0, 3)), reference)
    with pytest.raises(InputError, match="1 of 1,600 points are NaN"):
        evaluate_scan(np.where(np.arange(4800).reshape(-1, 3) == 7, np.nan, plane(0)), reference)
    with pytest.raises(InputError, match="millimetres"):
        evaluate_scan(plane(5000.0), reference)
    score, _ = evaluate_scan(plane(50.0), reference)
    assert np.isnan(score.accuracy) and np.isnan(score.completeness)  # nothing nearer than 20 mm


def test_missing_files(tmp_path):
    with pytest.raises(SceneError, match="no such folder"):
        load_reference(tmp_path / "nowhere", 1)
    write_scan(tmp_path, 1, 0)
    with pytest.raises(FormatError, match=r"ObsMask4_10\.mat: there is no such file"):
        load_reference(tmp_path, 4)
    (tmp_path / "Points" / "stl" / "stl001_total.ply").unlink()
    with pytest.raises(FormatError, match=r"stl001_total\.ply"):
        load_reference(tmp_path, 1)


GOOD = {"ObsMask": np.ones((2, 2, 2)), "BB": np.array([[0.0, 0, 0], [1, 1, 1]]), "Res": np.array([[1.0]])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ObsMask": np.ones((4, 4))}, "three-dimensional"),
        ({"ObsMask": np.array([["text"]], dtype=object)}, "'ObsMask' is not an array"),
        ({"BB": np.ones((3, 2))}, "BB must be"),
        ({"BB": np.array([[0.0, 0, 0], [1, np.nan, 1]])}, "not finite"),
        ({"BB": np.array([[2.0, 0, 0], [1, 1, 1]])}, "lower and an upper"),
        ({"Res": np.array([[0.0]])}, "positive"),
        ({"Res": np.array([[1.0, 2.0]])}, "Res must be"),
        ({"Res": "fine"}, "'Res' is not an array"),
        ({"BB": None}, "has no BB"),
    ],
)
def test_wrong_contents(tmp_path, change, message):
    path = tmp_path / "ObsMask1_10.mat"
    contents = {name: value for name, value in (GOOD | change).items() if value is not None}
    scipy_io.savemat(path, contents)
    with pytest.raises(FormatError, match=message):
        read_observed_volume(path)


def test_broken_bytes(tmp_path):
    path = tmp_path / "Plane1.mat"
    scipy_io.savemat(path, {"P": np.array([[0.0, 0, 1, 2]])}, do_compression=True)
    assert read_plane(path).tolist() == [0, 0, 1, 2]
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole[: rng.integers(0, len(whole) + 1)])
        for _ in range(rng.integers(0, 4)):
            if data:
                data[rng.integers(len(data))] = rng.integers(256)
        path.write_bytes(bytes(data))
        try:
            assert read_plane(path).shape == (4,)
        except FormatError as error:
            assert "Plane1.mat" in str(error)
    scipy_io.savemat(path, {"P": np.zeros((1, 4))})
    with pytest.raises(FormatError, match="no direction"):
        read_plane(path)


def test_names_of_clouds(tmp_path):
    for name in ("scan1/cloud.ply", "mvsnet004_l3.ply", "mine_9.ply"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_cloud(tmp_path, 1) == tmp_path / "scan1" / "cloud.ply"
    assert find_cloud(tmp_path, 4).name == "mvsnet004_l3.ply"
    assert find_cloud(tmp_path, 9, "mine_{scan}.ply").name == "mine_9.ply"
    with pytest.raises(SceneError, match="no cloud of scan 10"):
        find_cloud(tmp_path, 10)
    for odd in ("{view}.ply", "{scan.ply", "{scan.ply}"):
        with pytest.raises(GBiNetError, match="pattern"):
            find_cloud(tmp_path, 1, odd)
