"""Tracks and adjustment on exact projections: no photos, no features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gbinet.scenes.refine.adjust import Sigmas, adjust, rotations
from gbinet.scenes.refine.features import Features
from gbinet.scenes.refine.guided import Array, CameraArrays, Matches, epipolar_errors
from gbinet.scenes.refine.tracks import Tracks, link, reprojected, triangulated

VIEWS, POINTS = 5, 60
FAR = np.full(VIEWS, 50.0)


def exact() -> tuple[CameraArrays, Array, Tracks]:
    """CameraArrays around random points, which all of them see exactly."""
    random = np.random.default_rng(0)
    xyz = random.uniform(-1, 1, (POINTS, 3))
    poses = np.tile(np.eye(4), (VIEWS, 1, 1))
    poses[:, :3, :3] = rotations(random.normal(0, 0.15, (VIEWS, 3)))
    centres = np.stack([np.linspace(-1, 1, VIEWS), random.normal(0, 0.2, VIEWS), np.full(VIEWS, -5.0)], 1)
    poses[:, :3, 3] = -np.einsum("vij,vj->vi", poses[:, :3, :3], centres)
    K = np.tile(np.array([[500.0, 0.3, 320], [0, 510.0, 240], [0, 0, 1]]), (VIEWS, 1, 1))
    cameras = CameraArrays(K, poses, ((640, 480),) * VIEWS)
    local = np.einsum("vij,pj->pvi", poses[:, :3, :3], xyz) + poses[:, :3, 3]
    seen = np.einsum("vij,pvj->pvi", K, local)
    pixels = (seen[..., :2] / seen[..., 2:]).reshape(-1, 2)
    point, view = (axis.ravel() for axis in np.indices((POINTS, VIEWS)))
    return cameras, xyz, Tracks(point, view, point, pixels)


def off_by(cameras: CameraArrays, degrees: float, shift: float) -> CameraArrays:
    random = np.random.default_rng(1)
    poses = cameras.cam_from_world.copy()
    centres = cameras.centres + random.normal(0, shift, (VIEWS, 3))
    poses[:, :3, :3] = rotations(random.normal(0, np.radians(degrees), (VIEWS, 3))) @ poses[:, :3, :3]
    poses[:, :3, 3] = -np.einsum("vij,vj->vi", poses[:, :3, :3], centres)
    return replace(cameras, cam_from_world=poses)


def test_exact_rays_meet_in_their_points() -> None:
    cameras, xyz, tracks = exact()
    kept, points = triangulated(tracks, cameras, FAR)
    assert kept.count == POINTS and np.allclose(points, xyz, atol=1e-8)
    a, b = (tracks.pixels[tracks.view == view] for view in (1, 3))
    assert epipolar_errors(cameras, (1, 3), a, b).max() < 1e-6


def test_a_wrong_observation_costs_itself_and_no_point() -> None:
    cameras, xyz, tracks = exact()
    pixels = tracks.pixels.copy()
    pixels[7] += 40
    kept, points = triangulated(replace(tracks, pixels=pixels), cameras, np.full(VIEWS, 2.0))
    assert len(kept.point) == len(tracks.point) - 1 and np.allclose(points, xyz, atol=1e-8)


def test_what_one_view_sees_twice_it_does_not_see() -> None:
    features = [Features(np.arange(8.0).reshape(4, 2), np.zeros((4, 128), np.float16), 1.0)] * 3
    matches: Matches = {
        (0, 1): np.array([[0, 0], [1, 1], [3, 3]]),
        (1, 2): np.array([[0, 2], [1, 1]]),
        (0, 2): np.array([[3, 1]]),  # so 1 and 3 of view 0, and those of view 1, are one point
    }
    tracks = link(matches, features)
    assert tracks.count == 1 and tracks.view.tolist() == [0, 1, 2] and tracks.feature.tolist() == [0, 0, 2]
    assert link({}, features).count == 0


def test_adjustment_brings_cameras_back_and_keeps_what_it_is_given() -> None:
    cameras, _, tracks = exact()
    given = off_by(cameras, 0.3, 0.01)
    kept, points = triangulated(tracks, given, FAR)
    before = reprojected(kept, given, points)[0]
    sigmas = Sigmas(0.2, np.radians(0.3), 0.01)
    found, moved = adjust(given, given, kept, points, sigmas)
    assert np.median(before) > 1 and reprojected(kept, found, moved)[0].max() < 0.1
    assert np.linalg.norm(found.centres.mean(0) - given.centres.mean(0)) < 0.005
    stiff, _ = adjust(given, given, kept, points, Sigmas(0.2, 1e-7, 1e-7))
    assert np.allclose(stiff.cam_from_world, given.cam_from_world, atol=1e-4)


def test_a_view_without_observations_stays() -> None:
    cameras, _, tracks = exact()
    given = off_by(cameras, 0.3, 0.01)
    kept, points = triangulated(tracks.only(tracks.view != 2), given, FAR)
    found, _ = adjust(given, given, kept, points, Sigmas(0.2, np.radians(0.3), 0.01))
    assert (found.cam_from_world[2] == given.cam_from_world[2]).all()
    assert not np.allclose(found.cam_from_world[1], given.cam_from_world[1])


@pytest.mark.parametrize("scale", [0.001, 1000.0])
def test_the_unit_of_the_scene_does_not_matter(scale: float) -> None:
    cameras, _, tracks = exact()

    def result(unit: float) -> Array:
        poses = off_by(cameras, 0.3, 0.01).cam_from_world.copy()
        poses[:, :3, 3] *= unit
        given = replace(cameras, cam_from_world=poses)
        kept, points = triangulated(tracks, given, FAR)
        found, _ = adjust(given, given, kept, points, Sigmas(0.2, np.radians(0.3), 0.01 * unit))
        return found.centres / unit

    assert np.allclose(result(scale), result(1.0), atol=1e-5)
