"""Cameras that are nearly right come back to the truth, in their frame and scale; right ones stay."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from walls_scene import walls_scene

from gbinet.formats.image import write_image
from gbinet.progress import Progress
from gbinet.scene import Scene, SourceView, SparsePoints
from gbinet.scenes.complete import completed, completed_by_points
from gbinet.scenes.refine import check_cameras, refine_cameras
from gbinet.scenes.refine.adjust import rotation_vectors, rotations
from gbinet.scenes.refine.outcome import Refinement
from gbinet.scenes.refine.refine import Refined, cameras_of, refine

pytest.importorskip("pycolmap")


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return walls_scene(tmp_path_factory.mktemp("walls"), 7)


@dataclass(frozen=True)
class Found:
    """One refinement that several tests look at."""

    given: Scene
    folder: Path
    scene: Scene
    outcome: Refinement


@pytest.fixture(scope="module")
def found(truth: Scene, tmp_path_factory: pytest.TempPathFactory) -> Found:
    given, folder = disturbed(truth, 0.3, 0.01), tmp_path_factory.mktemp("found")
    return Found(given, folder, *refine_cameras(given, folder))


def disturbed(scene: Scene, degrees: float, shift: float, seed: int = 0) -> Scene:
    """Every camera turned and moved by chance, with these standard deviations along each axis."""
    random = np.random.default_rng(seed)
    views = []
    for view in scene.views:
        pose = view.camera.cam_from_world.numpy().copy()
        centre = -pose[:3, :3].T @ pose[:3, 3] + random.normal(0, shift, 3)
        pose[:3, :3] = rotations(random.normal(0, np.radians(degrees), (1, 3)))[0] @ pose[:3, :3]
        pose[:3, 3] = -pose[:3, :3] @ centre
        views.append(replace(view, camera=replace(view.camera, cam_from_world=torch.from_numpy(pose))))
    return replace(scene, views=tuple(views))


def relative_errors(scene: Scene, truth: Scene) -> NDArray[np.float64]:
    """[N, 2] degrees, and scene units, that the pose of a view in the frame of the one before it is off."""
    errors = []
    for ours, true in zip(relative(scene), relative(truth), strict=True):
        turn = rotation_vectors((ours[:3, :3] @ true[:3, :3].T)[None])[0]
        errors.append((np.degrees(np.linalg.norm(turn)), np.linalg.norm(ours[:3, 3] - true[:3, 3])))
    return np.array(errors)


def relative(scene: Scene) -> list[NDArray[np.float64]]:
    poses = cameras_of(scene).cam_from_world
    return [pose @ np.linalg.inv(before) for before, pose in pairwise(poses)]


def test_rotation_vectors_are_the_inverse_of_rotations() -> None:
    vectors = np.random.default_rng(1).normal(0, 0.8, (20, 3))
    vectors[0] = 0
    assert np.allclose(rotation_vectors(rotations(vectors)), vectors, atol=1e-12)
    assert np.allclose(rotations(vectors) @ rotations(-vectors), np.eye(3), atol=1e-12)


def test_disturbed_cameras_come_back(truth: Scene, found: Found) -> None:
    outcome = found.outcome
    assert outcome.kept_because is None and len(outcome.refined) == 7
    assert outcome.before is not None and outcome.after is not None
    assert outcome.before > 1 and outcome.after < 0.4 * outcome.before
    before, after = relative_errors(found.given, truth), relative_errors(found.scene, truth)
    assert (after.mean(0) < 0.5 * before.mean(0)).all(), (before.mean(0), after.mean(0))
    assert "cameras refined: 7 of 7 views" in outcome.summary() and " -> " in outcome.summary()


def test_frame_and_scale_are_those_of_the_given_cameras(found: Found) -> None:
    after, before = cameras_of(found.scene), cameras_of(found.given)
    middle = before.centres.mean(0)
    assert np.linalg.norm(after.centres.mean(0) - middle) < 0.005
    spread = [np.linalg.norm(one.centres - middle) for one in (after, before)]
    assert spread[0] / spread[1] == pytest.approx(1, abs=0.005)
    turn = np.einsum("vji,vjk->vik", after.cam_from_world[:, :3, :3], before.cam_from_world[:, :3, :3])
    assert np.degrees(np.linalg.norm(rotation_vectors(turn).mean(0))) < 0.2
    assert (after.K == before.K).all()


@pytest.mark.slow
@pytest.mark.parametrize("digits", [15, 7])
def test_moving_the_whole_scene_moves_the_result(truth: Scene, digits: int) -> None:
    """In map coordinates and centimetres it is the same scene, also where a file rounds rotations."""
    given = disturbed(truth, 0.3, 0.01)
    here = refine(given)
    turn = rotations(np.array([[0.3, -0.2, 0.9]]))[0]
    shift, scale = np.array([431_000.0, 5_612_000.0, 120.0]), 100.0
    far = []
    for view in given.views:
        pose = view.camera.cam_from_world.numpy().copy()
        rotation = np.round(pose[:3, :3] @ turn.T, digits)
        centre = scale * turn @ (-pose[:3, :3].T @ pose[:3, 3]) + shift
        pose[:3, :3], pose[:3, 3] = rotation, -rotation @ centre
        far.append(replace(view, camera=replace(view.camera, cam_from_world=torch.from_numpy(pose))))
    there = refine(replace(given, views=tuple(far)))
    assert np.allclose(there.cameras.centres, scale * here.cameras.centres @ turn.T + shift, atol=0.05)


def test_matches_of_photos_from_one_place_do_not_judge(truth: Scene) -> None:
    given = disturbed(truth, 0.5, 0.02)
    twice = [  # a headset at rest: every photo two times, and its double is its best source
        replace(view, name=f"{view.name}{k}", sources=(SourceView(2 * i + 1 - k, 9.0), SourceView(j, 1.0)))
        for i, view in enumerate(given.views)
        for k, j in ((0, (2 * i + 2) % 14), (1, (2 * i + 12) % 14))
    ]
    off = check_cameras(replace(given, views=tuple(twice)))
    assert off.off is not None and off.off > 1
    views = []
    for view in given.views[:3]:
        pose = view.camera.cam_from_world.clone()
        pose[:3, 3] = 0
        sources = tuple(source for source in view.sources if source.index < 3)
        views.append(replace(view, camera=replace(view.camera, cam_from_world=pose), sources=sources))
    turning = replace(given, views=tuple(views))
    assert "from one place" in check_cameras(turning).summary()
    assert "from one place" in refine(turning).outcome.summary()


def test_right_cameras_stay_as_they_are(truth: Scene, tmp_path: Path) -> None:
    scene, outcome = refine_cameras(truth, tmp_path)
    assert outcome.kept_because is not None and "as well as refined ones" in outcome.kept_because
    assert scene is truth and outcome.summary().startswith("the given cameras were kept: ")


def test_wrong_cameras_that_stay_are_not_called_right(truth: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_better: Any = lambda given, every, *_: (given, every, np.zeros((every.count, 3)))  # noqa: E731
    monkeypatch.setattr("gbinet.scenes.refine.refine._optimise", nothing_better)
    said = refine(disturbed(truth, 0.5, 0.02)).outcome.summary()
    assert "as well" not in said and "none were found that fit clearly better" in said and "focal" in said


def test_points_of_a_scene_stay_with_it(found: Found) -> None:
    points = SparsePoints(torch.rand(50, 3, dtype=torch.float64))
    views = tuple(replace(view, depth_range=None) for view in found.given.views)
    few = SparsePoints(torch.tensor([[0.0, 0, 5], [0.2, 0, 4], [0, 0.3, 5]], dtype=torch.float64))
    scene = replace(found.given, views=views, points=points)
    cameras = [view.camera for view in found.scene.views]
    assert completed_by_points(scene, cameras, few).points is points


def test_cameras_that_cannot_be_refined_are_kept_with_a_reason(truth: Scene, tmp_path: Path) -> None:
    two = replace(truth, views=tuple(replace(v, sources=()) for v in truth.views[:2]))
    kept, outcome = refine_cameras(two, tmp_path / "two")
    assert kept is two and "3 views are needed" in outcome.summary()
    blank = walls_scene(tmp_path / "blank", 4, blank=True)
    kept, outcome = refine_cameras(blank, tmp_path / "out")
    assert kept is blank and "too few features (0 matches)" in outcome.summary()


def test_a_view_that_shows_nothing_keeps_its_camera(truth: Scene, tmp_path: Path) -> None:
    black = walls_scene(tmp_path / "black", 1, blank=True).views[0]
    given = disturbed(truth, 0.3, 0.01)
    views = list(given.views)
    views[6] = replace(views[6], image_path=black.image_path)
    scene, outcome = refine_cameras(replace(given, views=tuple(views)), tmp_path / "out")
    assert outcome.left == (views[6].name,) and len(outcome.refined) == 6
    assert torch.equal(scene.views[6].camera.cam_from_world, views[6].camera.cam_from_world)
    assert any(views[6].name in text for text in outcome.warnings())


def test_the_result_is_kept_until_its_input_changes(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(scene: Scene, progress: Progress | None = None) -> Refined:
        calls.append(1)
        return refine(scene, progress)

    monkeypatch.setattr("gbinet.scenes.refine.cached.refine", counted)
    first = found.scene
    again, told = refine_cameras(found.given, found.folder)
    assert calls == [] and told == found.outcome and again.warnings == first.warnings
    for one, two in zip(first.views, again.views, strict=True):
        assert torch.equal(one.camera.cam_from_world, two.camera.cam_from_world)
        assert (one.depth_range, one.sources) == (two.depth_range, two.sources)
    shutil.copytree(found.folder / "refined", tmp_path / "refined")
    two = replace(found.given, views=tuple(replace(v, sources=()) for v in found.given.views[:2]))
    assert refine_cameras(two, tmp_path)[0] is two and calls == [1]
    (tmp_path / "refined" / "cameras.json").write_text(json.dumps({"inputs": 3}))
    assert refine_cameras(two, tmp_path)[0] is two and calls == [1, 1]


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (("views", 0, "cam_from_world"), [[float("nan")] * 4] * 4),
        (("views", 0, "cam_from_world"), [[0.0] * 4] * 4),
        (("views", 0, "cam_from_world"), [[1.0, 2.0], [3.0]]),
        (("views", 0, "sources"), [[99, 1.0]]),
        (("views", 0, "sources"), [[float("inf"), 1.0]]),
        (("views", 0, "depth_range"), [3, 1]),
        (("outcome", "before"), "much"),
        (("outcome", "moved"), None),
        (("views",), []),
    ],
)
def test_what_somebody_changed_is_found_anew(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, ...], what: object
) -> None:
    content = part = json.loads((found.folder / "refined" / "cameras.json").read_text())
    for step in where[:-1]:
        part = part[step]
    part[where[-1]] = what
    (tmp_path / "refined").mkdir()
    (tmp_path / "refined" / "cameras.json").write_text(json.dumps(content))
    anew = Refined(cameras_of(found.given), replace(found.outcome, kept_because="a test"), None)
    monkeypatch.setattr("gbinet.scenes.refine.cached.refine", lambda *_: anew)
    scene, outcome = refine_cameras(found.given, tmp_path)
    assert scene is found.given and outcome.kept_because == "a test"


def test_the_same_input_gives_the_same_bytes(found: Found, tmp_path: Path) -> None:
    refine_cameras(found.given, tmp_path)
    kept = []
    for folder in (found.folder, tmp_path):
        content = json.loads((folder / "refined" / "cameras.json").read_text())
        content["outcome"].pop("seconds")
        kept.append(content)
    assert kept[0] == kept[1]


def test_ranges_that_were_guessed_follow_the_points(found: Found, tmp_path: Path) -> None:
    given = disturbed(walls_scene(tmp_path / "walls", 7, known_range=False), 0.3, 0.01)
    guessed = completed(given)
    assert any("guess" in text for text in guessed.warnings)
    scene, _ = refine_cameras(guessed, tmp_path / "out")
    assert not any("guess" in text for text in scene.warnings)
    for view in scene.views:
        assert view.depth_range is not None and view.sources
        assert 2 < view.depth_range.near < 4 and 5 < view.depth_range.far < 16
    assert [v.depth_range for v in found.scene.views] == [v.depth_range for v in found.given.views]


def test_warnings_of_a_later_run_are_its_own(found: Found) -> None:
    given = replace(found.given, warnings=("masks: holds no mask for 7 of 7 views",))
    assert refine_cameras(given, found.folder)[0].warnings == given.warnings


def test_masked_features_are_not_used(truth: Scene, tmp_path: Path) -> None:
    black = write_image(tmp_path / "mask.png", np.zeros((180, 240), bool))
    masked = replace(truth, views=tuple(replace(view, mask_path=black) for view in truth.views))
    assert "too few features" in refine(masked).outcome.summary()


def test_a_check_says_whether_cameras_are_off(truth: Scene) -> None:
    assert check_cameras(truth).summary().startswith("cameras fit: ")
    off = check_cameras(disturbed(truth, 0.5, 0.02))
    assert off.off is not None and off.off > 1 and "--refine-cameras" in off.summary()
