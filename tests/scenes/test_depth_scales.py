"""The scale of exported depth maps is read from the files that were exported with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gbinet.cli.main import main
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError
from gbinet.evaluation.depth_scene import find_pairs, read_pair
from gbinet.formats.depth_files import read_depth, write_depth
from gbinet.formats.ply import read_ply
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.depth_scales import StatedScales
from gbinet.scenes.kinds import write_scene
from gbinet.scenes.load import load_scene

PlaneScene = tuple[Scene, list[DepthMap]]
ROUNDED = 0.0006  # half a step, and float32


def exported(plane_scene: PlaneScene, folder: Path, kind: str) -> Path:
    scene, maps = plane_scene
    write_scene(scene, folder, kind, zip(scene.views, maps, strict=True))
    return folder / "depths" if kind == "nerfstudio" else folder


def median(maps: DepthFolder, index: int = 0) -> float:
    found = maps.load(index)
    assert found is not None
    return float(found.depth[found.valid].median())


@pytest.mark.parametrize("kind", ["depth-png", "nerfstudio"])
def test_exported_maps_are_read_with_the_scale_that_was_written(
    kind: str, plane_scene: PlaneScene, tmp_path: Path
) -> None:
    folder, (scene, maps) = exported(plane_scene, tmp_path / "out", kind), plane_scene
    found = load_scene(tmp_path / "out") if kind == "nerfstudio" else scene
    for index, depth_map in enumerate(maps):
        read = DepthFolder(found, folder).load(index)
        assert read is not None
        assert torch.allclose(read.depth, depth_map.depth.float(), atol=ROUNDED, rtol=0)
    true = float(maps[0].depth[maps[0].valid].median())
    assert median(DepthFolder(found, folder, 0.002)) == pytest.approx(2 * true, abs=2 * ROUNDED)
    assert median(DepthFolder(found, folder, 1.0)) == pytest.approx(1000 * true, rel=1e-3)


@pytest.mark.parametrize("kind", ["depth-png", "nerfstudio"])
def test_evaluation_reads_the_scale_of_predictions_and_of_truth(
    kind: str, plane_scene: PlaneScene, tmp_path: Path
) -> None:
    folder, (scene, maps) = exported(plane_scene, tmp_path / "out", kind), plane_scene
    for view, depth_map in zip(scene.views, maps, strict=True):
        for path in folder.glob(f"{view.name}.*"):
            write_depth(tmp_path / "plain" / f"{path.stem}.npy", depth_map.depth)
    for given, truth in [(folder, tmp_path / "plain"), (tmp_path / "plain", folder)]:
        for pair in find_pairs(given, truth):
            depth, true, _ = read_pair(pair)
            assert torch.allclose(depth, true, atol=ROUNDED, rtol=0)
    assert {pair.depth_scale for pair in find_pairs(folder, tmp_path / "plain", 1.0)} == {1.0}


def test_commands_read_the_scale(plane_scene: PlaneScene, tmp_path: Path) -> None:
    pictures = exported(plane_scene, tmp_path / "pictures", "depth-png")
    exported(plane_scene, tmp_path / "scene", "colmap")
    own, maps = str(tmp_path / "scene"), ["--depth", str(pictures)]
    assert main(["fuse", own, *maps, "-o", str(tmp_path / "a.ply"), "--min-views", "1"]) == 0
    explicit = [*maps, "--depth-scale", "0.001", "-o", str(tmp_path / "b.ply"), "--min-views", "1"]
    assert main(["fuse", own, *explicit]) == 0
    clouds = [read_ply(tmp_path / name).xyz for name in ("a.ply", "b.ply")]
    assert len(clouds[0]) and torch.equal(clouds[0], clouds[1])
    assert main(["convert", own, str(tmp_path / "m"), "--to", "mvsnet", *maps]) == 0
    deepest = max(float(read_depth(path).max()) for path in (tmp_path / "m" / "depths").iterdir())
    assert deepest < 100
    one = next(pictures.glob("*.png"))
    assert main(["convert", str(one), str(tmp_path / "one.npy")]) == 0
    assert np.array_equal(read_depth(tmp_path / "one.npy"), read_depth(one, 0.001))


def test_what_transforms_json_states_comes_before_the_usual_scale(
    plane_scene: PlaneScene, tmp_path: Path
) -> None:
    folder = exported(plane_scene, tmp_path / "out", "nerfstudio")
    path = tmp_path / "out" / "transforms.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"depth_unit_scale_factor": 0.01}))
    assert {StatedScales(folder).of(p) for p in folder.iterdir() if p.suffix != ".json"} == {0.01}
    assert StatedScales(folder).of(folder / "of-another-program.png") == 1.0


def test_one_folder_up_counts_and_files_of_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    path, content = tmp_path / "cameras.json", {"depth_scale": 0.01, "views": [{"depth": "a.png"}]}
    path.write_text(json.dumps(content))
    assert StatedScales(tmp_path / "maps").of(tmp_path / "maps" / "a.png") == 0.01
    path.write_text(json.dumps([{"id": 0, "img_name": "a"}]))  # that of Gaussian splatting
    assert StatedScales(tmp_path / "maps").of(tmp_path / "maps" / "a.png") == 1.0


@pytest.mark.parametrize(
    "scale", [0, -1, True, "0.001", None, float("inf"), pytest.param(10**400, id="large")]
)
def test_an_impossible_scale_is_refused(scale: object, tmp_path: Path) -> None:
    (tmp_path / "cameras.json").write_text(json.dumps({"depth_scale": scale, "views": []}))
    with pytest.raises(FormatError, match="not a positive number"):
        StatedScales(tmp_path)
