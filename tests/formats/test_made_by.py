"""A prediction says that it is one, in every format, and stays one when it is converted."""

from __future__ import annotations

import ast
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from ball_scene import SceneMaker, true_depth

from gbinet.depthmap import DepthMap
from gbinet.errors import SceneError
from gbinet.evaluation.depth_scene import find_pairs
from gbinet.formats.depth_files import read_depth, read_depth_map, write_depth
from gbinet.formats.made_by import FILE, maker_of
from gbinet.scene import Scene
from gbinet.scenes.kinds import write_scene
from gbinet.scenes.load import load_scene

MAKER = {"program": "gbinet", "gbinet": "0.1.0", "weights": "0123", "weights_file": "w.safetensors"}
SUFFIXES = (".npz", ".npy", ".pfm", ".png", ".tif", ".bin")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_who_made_a_map_comes_back(tmp_path: Path, suffix: str) -> None:
    depth = np.full((3, 4), 7.0, np.float32)
    path = write_depth(tmp_path / f"a{suffix}", depth, made_by=MAKER)
    truth = write_depth(tmp_path / f"b{suffix}", depth)
    assert maker_of(path) == MAKER and maker_of(truth) is None
    write_depth(path, depth)  # the truth in its place
    assert maker_of(path) is None


def test_one_thread_at_a_time_reads_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 fails where two threads are inside `ast.literal_eval`, which NumPy uses, at once."""
    path = write_depth(tmp_path / "a.npz", np.ones((3, 4)), made_by=MAKER)
    inside, most, real = [0], [0], ast.literal_eval

    def slowly(text: str) -> object:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.005)
        inside[0] -= 1
        return real(text)

    monkeypatch.setattr(ast, "literal_eval", slowly)
    with ThreadPoolExecutor(4) as pool:
        assert all(maker == MAKER for maker in pool.map(maker_of, [path] * 8))
        assert all((depth == 1).all() for depth in pool.map(read_depth, [path] * 8))
    assert most[0] == 1


def test_the_truth_alone_leaves_no_list(tmp_path: Path) -> None:
    write_depth(tmp_path / "a.pfm", np.ones((3, 4)))
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a.pfm": 1}', "[" * 100_000])
def test_broken_lists_count_as_empty(tmp_path: Path, content: str) -> None:
    write_depth(tmp_path / "a.pfm", np.ones((3, 4)))
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    (tmp_path / FILE).write_text(content)
    assert maker_of(tmp_path / "a.pfm") is None and maker_of(tmp_path / "a.npz") is None


def predicted(scene: Scene) -> list[tuple[object, DepthMap]]:
    return [(v, DepthMap(true_depth(v.camera), v.camera, made_by=MAKER)) for v in scene.views]


@pytest.mark.parametrize("kind", ["mvsnet", "nerfstudio", "openmvs", "colmap-dense"])
def test_predictions_in_a_converted_scene_are_not_its_truth(
    ball_scene: SceneMaker, tmp_path: Path, kind: str
) -> None:
    scene = ball_scene(views=3)
    folder = write_scene(scene, tmp_path / "scene", kind, predicted(scene))  # type: ignore[arg-type]
    files = [p for s in (".pfm", ".png", ".dmap", ".geometric.bin") for p in folder.rglob(f"*{s}")]
    maps = [p for p in files if p.parent.name not in ("images", "normal_maps")]
    assert len(maps) == 3 and all(maker_of(p) == MAKER for p in maps)
    if kind != "openmvs":  # which nobody reads as a scene
        again = load_scene(folder)
        assert all(view.depth_path is None for view in again.views)
        assert kind == "colmap-dense" or any("predictions of gbinet" in note for note in again.warnings)


def test_our_depth_folder_in_a_scene_is_not_its_truth(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=3)
    folder = write_scene(scene, tmp_path / "scene", "mvsnet")
    for number, (_, depth_map) in enumerate(predicted(scene)):
        for place in (folder / "depth", tmp_path / "out" / "depth"):
            write_depth(place / f"{number:08d}.npz", depth_map.depth, made_by=MAKER)
    with pytest.raises(
        SceneError, match=r"no true depth to compare with; 3 depth maps in .* are predictions"
    ):
        find_pairs(tmp_path / "out", folder)
    write_depth(folder / "depth" / "00000001.npz", np.ones((48, 64)))  # a true one among them
    assert [pair.name for pair in find_pairs(tmp_path / "out", folder)] == ["00000001"]


def test_a_folder_of_predictions_is_refused_as_truth(tmp_path: Path) -> None:
    depth = np.ones((3, 4), np.float32)
    write_depth(tmp_path / "out" / "a.npz", depth, made_by=MAKER)
    write_depth(tmp_path / "exported" / "a.pfm", depth, made_by=MAKER)
    with pytest.raises(SceneError, match=r"a\.pfm: is a prediction \(gbinet 0\.1\.0, weights w\.safetensors"):
        find_pairs(tmp_path / "out", tmp_path / "exported")
    write_depth(tmp_path / "plain" / "a.npy", depth)
    with pytest.raises(SceneError, match="given as prediction and as truth"):
        find_pairs(tmp_path / "plain", tmp_path / "plain")
    assert len(find_pairs(tmp_path / "out", tmp_path / "plain")) == 1


def test_reading_and_writing_keeps_the_maker(ball_scene: SceneMaker, tmp_path: Path) -> None:
    view = ball_scene(views=2).views[0]
    path = write_depth(tmp_path / "a.npz", true_depth(view.camera), made_by=MAKER)
    again = read_depth_map(path, view.camera)
    assert again.made_by == MAKER
