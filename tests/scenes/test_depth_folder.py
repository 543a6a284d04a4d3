"""One way to find depth maps, whoever wrote them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbinet.cli.main import main
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, SceneError
from gbinet.evaluation.depth_scene import find_pairs
from gbinet.formats.depth_files import depth_files_in, write_depth, write_depth_map
from gbinet.georeference.similarity import Similarity, transformed_scene
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder, maps_folder
from gbinet.scenes.kinds import write_scene
from gbinet.scenes.load import load_scene

SceneMaker = Callable[..., Scene]


def exported(scene: Scene, folder: Path, kind: Any) -> Path:
    """The scene with flat depth maps, at a depth of its own for each view."""
    maps = [
        (view, DepthMap(torch.full((view.camera.height, view.camera.width), 2.0 + i), view.camera))
        for i, view in enumerate(scene.views)
    ]
    write_scene(scene, folder, kind, maps)
    return folder


@pytest.mark.parametrize("kind", ["colmap-dense", "openmvs", "mvsnet"])
def test_depth_maps_are_found_under_the_names_that_convert_writes(
    kind: str, ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene(views=3)
    folder = exported(scene, tmp_path / "other", kind)
    place = folder / "depths" if kind == "mvsnet" else maps_folder(folder)
    if kind != "mvsnet":  # which renames its views
        maps = DepthFolder(scene, place)
        for index in range(3):
            found = maps.load(index)
            assert found is not None and float(found.depth.median()) == 2.0 + index
    assert len(depth_files_in(place)) >= 3


def test_a_workspace_is_fused_with_its_own_depth_maps(ball_scene: SceneMaker, tmp_path: Path) -> None:
    folder = exported(ball_scene(views=3), tmp_path / "workspace", "colmap-dense")
    scene = load_scene(folder)
    assert DepthFolder(scene).known() == [0, 1, 2]
    assert main(["fuse", str(folder), "-o", str(tmp_path / "cloud.ply"), "--min-views", "1"]) == 0
    assert (tmp_path / "cloud.ply").is_file()


@pytest.mark.parametrize("kind", ["colmap-dense", "openmvs"])
def test_evaluation_finds_what_fusion_finds(kind: str, ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=3)
    folder = exported(scene, tmp_path / "other", kind)
    for view in scene.views:
        shape = (view.camera.height, view.camera.width)
        write_depth(tmp_path / "truth" / f"{view.name}.npy", np.full(shape, 2.5, np.float32))
    pairs = find_pairs(folder, tmp_path / "truth")
    assert [pair.name for pair in pairs] == sorted(view.name for view in scene.views)
    out = tmp_path / "evaluation"
    assert main(["evaluate", "depth", str(folder), str(tmp_path / "truth"), "--out", str(out)]) == 0


def test_ours_come_before_those_of_others_and_geometric_before_photometric(tmp_path: Path) -> None:
    values = np.ones((4, 4), np.float32)
    for name in ("a.npz", "a.jpg.geometric.bin", "b.jpg.photometric.bin", "b.jpg.geometric.bin", "c.d.pfm"):
        write_depth(tmp_path / name, values)
    (tmp_path / "a.txt").write_text("not a depth map")
    found = {name: path.name for name, path in depth_files_in(tmp_path).items()}
    assert found == {"a": "a.npz", "b": "b.jpg.geometric.bin", "c.d": "c.d.pfm"}


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="no such folder"):
        maps_folder(tmp_path / "nothing")


@given(st.floats(0.05, 20).filter(lambda unit: abs(unit - 1) > 0.1))
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_depth_map_in_another_unit_is_not_mixed_with_the_scene(
    ball_scene: SceneMaker, tmp_path: Path, unit: float
) -> None:
    scene = ball_scene(views=2)
    view = scene.views[0]
    depth = torch.full((view.camera.height, view.camera.width), 2.0)
    write_depth_map(tmp_path / f"{view.name}.npz", DepthMap(depth, view.camera))
    assert DepthFolder(scene, tmp_path).load(0) is not None
    moved = transformed_scene(scene, Similarity(unit, np.eye(3), np.zeros(3)))
    with pytest.raises(SceneError, match="another camera"):
        DepthFolder(moved, tmp_path).load(0)


@pytest.mark.parametrize("degrees", [0.3, 0.03])
def test_a_depth_map_of_refined_cameras_is_not_mixed_with_the_given_ones(
    ball_scene: SceneMaker, tmp_path: Path, degrees: float
) -> None:
    scene = ball_scene(views=2)
    view = scene.views[0]
    pose, turn = view.camera.cam_from_world.double().clone(), np.radians(degrees)
    across = [[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]]
    pose[:3] = torch.tensor(across, dtype=torch.float64) @ pose[:3]
    depth = torch.full((view.camera.height, view.camera.width), 2.0)
    refined = replace(view.camera, cam_from_world=pose)
    write_depth_map(tmp_path / f"{view.name}.npz", DepthMap(depth, refined))
    with pytest.raises(SceneError, match="another camera"):
        DepthFolder(scene, tmp_path).load(0)
    scene = replace(scene, views=(replace(view, camera=refined), *scene.views[1:]))
    assert DepthFolder(scene, tmp_path).load(0) is not None


def test_a_cropped_depth_map_is_refused_and_one_of_rounded_size_is_not(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene(views=2)
    view = scene.views[0]
    H, W = view.camera.height, view.camera.width
    path = tmp_path / f"{view.name}.npy"
    for shape in [(H, W), (H // 2, W // 2), (H // 3 + 1, W // 3), (2 * H, 2 * W)]:
        write_depth(path, np.ones(shape, np.float32))
        assert DepthFolder(scene, tmp_path).load(0) is not None
    for shape in [(H, W - 8), (H - 8, W), (2 * H, W)]:
        write_depth(path, np.ones(shape, np.float32))
        with pytest.raises(
            FormatError, match=rf"{view.name}\.npy.*of another shape; was one of them cropped"
        ):
            DepthFolder(scene, tmp_path).load(0)
