"""ETH3D's measures: closed forms, and against the plain loops of the definition."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from gbinet.errors import FormatError, InputError
from gbinet.evaluation import eth3d
from gbinet.evaluation.align import transformed
from gbinet.evaluation.eth3d import ETH3DProtocol, Scan, beam_ends, evaluate_scene, load_scans, voxel_share
from gbinet.formats.ply import write_ply
from gbinet.pointcloud import PointCloud

pytest.importorskip("scipy")


def pose(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    matrix = np.eye(4)
    matrix[:3, :3] = rotation * np.sign(np.linalg.det(rotation))
    matrix[:3, 3] = rng.normal(0, 0.5, 3)
    return matrix


def wall(seed: int, count: int, depth: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([np.full(count, depth), rng.uniform(-0.1, 0.1, (count, 2))])


def loops(points, scans, tolerance, protocol):
    """The definition, point by point and voxel by voxel."""
    tangent = math.tan(math.radians(protocol.beam_halfangle))
    merged = np.concatenate([transformed(s.points, s.world_from_scan) for s in scans])
    complete = [min(np.linalg.norm(points - q, axis=1)) <= tolerance for q in merged]
    state = []
    for point in points:
        accurate = inaccurate = False
        for scan in scans:
            p = transformed(point[None], np.linalg.inv(scan.world_from_scan))[0]
            beam = protocol.beam_radius + np.linalg.norm(p) * tangent
            for end in scan.points:
                length = np.linalg.norm(end)
                along = p @ end / length
                if along >= 0 and np.linalg.norm(p - along * end / length) <= beam:
                    accurate |= np.linalg.norm(end - p) <= tolerance
                    inaccurate |= along < length
        state.append("yes" if accurate else "no" if inaccurate else "unknown")

    def average(xyz, verdicts):
        shares = []
        for shift in (0.0, 0.5):
            cells: dict[tuple[int, ...], list[bool]] = {}
            for p, verdict in zip(xyz, verdicts, strict=True):
                cells.setdefault(tuple(math.floor(c / protocol.voxel + shift) for c in p), []).append(verdict)
            shares += [sum(v) / len(v) for v in cells.values()]
        return sum(shares) / len(shares)

    known = [k for k, s in enumerate(state) if s != "unknown"]
    accuracy = average(points[known], [state[k] == "yes" for k in known])
    return average(merged, complete), accuracy, state


@pytest.mark.parametrize("rays", [(4, 8, 2048), (1, 2, 4)])  # the second goes through every branch
def test_against_the_definition(monkeypatch, rays):
    for name, value in zip(("_FIRST_RAYS", "_MORE_RAYS", "_MOST_RAYS"), rays, strict=True):
        monkeypatch.setattr(eth3d, name, value)
    monkeypatch.setattr(eth3d, "_CHUNK", 50)
    rng = np.random.default_rng(0)
    protocol = ETH3DProtocol(voxel=0.05, beam_radius=0.004, beam_halfangle=0.05)
    scans = [Scan(wall(1, 150), pose(1)), Scan(wall(2, 150, 2.0), pose(2))]
    # Points around beams: before their ends, near them, behind them.
    picks = [transformed(s.points * rng.uniform(0.1, 1.1, (150, 1)), s.world_from_scan) for s in scans]
    near = [transformed(s.points + rng.normal(0, 0.02, (150, 3)), s.world_from_scan) for s in scans]
    points = np.concatenate(picks + near)
    score, _ = evaluate_scene(points, scans, [0.01, 0.05], protocol)
    for tolerance in (0.01, 0.05):
        completeness, accuracy, state = loops(points, scans, tolerance, protocol)
        assert {"yes", "no", "unknown"} == set(state)
        assert score.completeness[tolerance] == pytest.approx(completeness, abs=1e-9)
        assert score.accuracy[tolerance] == pytest.approx(accuracy, abs=1e-9)
        f1 = 2 * accuracy * completeness / (accuracy + completeness)
        assert score.f1[tolerance] == pytest.approx(f1, abs=1e-9)


def test_perfect_and_floating_clouds():
    scan = Scan(wall(0, 2000), np.eye(4))
    perfect, _ = evaluate_scene(scan.points, [scan], [0.01])
    assert perfect.completeness[0.01] == perfect.accuracy[0.01] == perfect.f1[0.01] == 1
    before, _ = evaluate_scene(scan.points * 0.9, [scan], [0.01, 0.5])  # 30 cm in front of the wall
    assert before.accuracy[0.01] == before.completeness[0.01] == before.f1[0.01] == 0
    assert before.accuracy[0.5] == before.completeness[0.5] == 1
    behind, distances = evaluate_scene(scan.points * 1.1, [scan], [0.01])  # hidden by the wall: unknown
    assert behind.accuracy[0.01] == 0 and not distances.in_free_space.any()


def test_density_does_not_outweigh():
    """Ninety good points in one voxel and one bad point in another: half of the voxels are good."""
    points = np.concatenate([np.full((90, 3), 0.012), [[5.012, 5.012, 5.012]]])
    good = np.arange(91) < 90
    assert voxel_share(points, good, np.ones(91, bool), 0.01) == pytest.approx(0.5)
    assert voxel_share(points, good, np.zeros(91, bool), 0.01) == 0


def test_a_point_in_the_scanner_is_in_every_beam():
    scan = Scan(wall(0, 300), np.eye(4))
    distance, free = beam_ends(np.array([[0.0, 0, 0], [-1.0, 0, 0]]), [scan], ETH3DProtocol())
    assert free.tolist() == [True, False]
    assert distance[0] == pytest.approx(np.linalg.norm(scan.points, axis=1).min())


# ---- files ------------------------------------------------------------------------------------------------

PROJECT = """<!DOCTYPE MeshLabDocument>
<MeshLabProject>
 <MeshGroup>
  <MLMesh label="scan1" filename="scan1.ply"><MLMatrix44>
0 -1 0 1
1 0 0 2
0 0 1 3
0 0 0 1
</MLMatrix44></MLMesh>
 </MeshGroup>
</MeshLabProject>
"""


def test_scans_of_a_project(tmp_path: Path):
    write_ply(tmp_path / "scan1.ply", PointCloud(torch.ones(4, 3)))
    (tmp_path / "scan_alignment.mlp").write_text(PROJECT)
    (scan,) = load_scans(tmp_path / "scan_alignment.mlp")
    assert np.allclose(transformed(scan.points, scan.world_from_scan), [0, 3, 4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("</MeshGroup>", ""), "not XML"),
        (("0 -1 0 1", "0 -1 0"), "16 numbers"),
        (("0 -1 0 1", "0 -9 0 1"), "not a rotation"),
        (("0 0 0 1", "0 0 1 1"), "not a rotation"),
        (("0 0 1 3", "0 0 1 nan"), "not a rotation"),
        (('filename="scan1.ply"', ""), "filename"),
        (("MeshGroup", "Rasters"), "MeshGroup"),
        (("<!DOCTYPE MeshLabDocument>", '<!DOCTYPE a [<!ENTITY b "c">]>'), "entities"),
        (("scan1.ply", "gone.ply"), "no such file"),
    ],
)
def test_broken_projects(tmp_path, change, message):
    path = tmp_path / "a.mlp"
    path.write_text(PROJECT.replace(*change))
    with pytest.raises(FormatError, match=message):
        load_scans(path)


def test_bad_input():
    scan = Scan(wall(0, 10), np.eye(4))
    with pytest.raises(InputError, match="no points"):
        evaluate_scene(np.zeros((0, 3)), [scan])
    with pytest.raises(InputError, match="no scans"):
        evaluate_scene(wall(0, 10), [])
    with pytest.raises(InputError, match="tolerances"):
        evaluate_scene(wall(0, 10), [scan], [0.0])
    with pytest.raises(InputError, match="away from its scanner"):
        evaluate_scene(wall(0, 10), [Scan(np.zeros((5, 3)), np.eye(4))])
