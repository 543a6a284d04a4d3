"""`gbinet convert`, as it is typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from exact_plane import make_plane_scene

from gbinet.cli.main import main
from gbinet.depthmap import DepthMap
from gbinet.formats.depth_files import read_depth, write_depth
from gbinet.formats.ply import read_ply, write_ply
from gbinet.pointcloud import PointCloud
from gbinet.scene import Scene
from gbinet.scenes.load import load_scene
from gbinet.scenes.mvsnet import write


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[DepthMap], Scene]:
    """An MVSNet folder, and beside it `result/depth/*.npz` as `gbinet reconstruct` leaves them."""
    folder = tmp_path_factory.mktemp("convert")
    scene, depth_maps = make_plane_scene(folder / "images")
    write(scene, folder / "mvsnet")
    for number, depth_map in enumerate(depth_maps):
        write_depth(folder / "result" / "depth" / f"{number:08d}.npz", depth_map.depth, depth_map.confidence)
    return folder, depth_maps, scene


def convert(*arguments: object) -> int:
    return main(["convert", *(str(a) for a in arguments)])


@pytest.mark.parametrize("kind", ["mvsnet", "colmap", "colmap-text", "colmap-dense", "nerfstudio", "openmvs"])
def test_from_mvsnet_to_everything(written, tmp_path, capsys, kind):
    folder, depth_maps, scene = written
    depth = [] if kind in ("colmap", "colmap-text") else ["--depth", folder / "result"]
    assert convert(folder / "mvsnet", tmp_path / "out", "--to", kind, *depth) == 0
    assert f"mvsnet -> {kind}" in capsys.readouterr().out
    if kind != "openmvs":
        assert len(load_scene(tmp_path / "out").views) == len(scene.views)
    expected = {
        "mvsnet": "depths/00000004.pfm",
        "colmap-dense": "stereo/depth_maps/00000004.png.geometric.bin",
        "nerfstudio": "depths/00000004.png",
        "openmvs": "depth0004.dmap",
    }
    if kind in expected:
        scale = 0.001 if kind == "nerfstudio" else 1.0
        assert np.allclose(
            read_depth(tmp_path / "out" / expected[kind], scale), depth_maps[4].depth, atol=6e-4
        )


def test_depth_of_a_colmap_workspace_and_of_the_scene_itself_travel(written, tmp_path, capsys):
    folder, depth_maps, _ = written
    assert (
        convert(folder / "mvsnet", tmp_path / "dense", "--to", "colmap-dense", "--depth", folder / "result")
        == 0
    )
    assert convert(tmp_path / "dense", tmp_path / "b", "--to", "mvsnet", "--depth", tmp_path / "dense") == 0
    assert np.array_equal(read_depth(tmp_path / "b" / "depths" / "00000002.pfm"), depth_maps[2].depth)
    assert convert(tmp_path / "dense", tmp_path / "d", "--to", "mvsnet") == 0  # stereo/ comes along
    assert np.array_equal(read_depth(tmp_path / "d" / "depths" / "00000002.pfm"), depth_maps[2].depth)
    capsys.readouterr()
    assert convert(tmp_path / "b", tmp_path / "sparse", "--to", "colmap") == 0
    printed = capsys.readouterr().out
    assert "5 depth maps are not written" in printed and "0 depth maps, in" in printed
    assert convert(tmp_path / "b", tmp_path / "c", "--to", "openmvs") == 0  # its own depths/ come along
    assert np.array_equal(read_depth(tmp_path / "c" / "depth0002.dmap"), depth_maps[2].depth)


def test_single_files(written, tmp_path, capsys):
    folder, depth_maps, _ = written
    source = folder / "result" / "depth" / "00000001.npz"
    for name in ("a.pfm", "a.tiff", "a.npy", "a.bin"):
        assert convert(source, tmp_path / name) == 0
        assert np.array_equal(read_depth(tmp_path / name), depth_maps[1].depth)
    assert convert(source, tmp_path / "a.png", "--scale-out", 0.001) == 0
    assert "note" not in capsys.readouterr().out
    assert convert(source, tmp_path / "coarse.png") == 0  # metres, in whole metres
    assert "--scale-out" in capsys.readouterr().out
    assert convert(tmp_path / "a.png", tmp_path / "b.pfm", "--depth-scale", 0.001) == 0
    assert np.allclose(read_depth(tmp_path / "b.pfm"), depth_maps[1].depth, atol=6e-4)
    cloud = PointCloud(torch.rand(5, 3))
    write_ply(tmp_path / "a.ply", cloud)
    assert convert(tmp_path / "a.ply", tmp_path / "b.ply") == 0
    assert torch.equal(read_ply(tmp_path / "b.ply").xyz, cloud.xyz)


def test_mistakes_end_in_one_sentence_and_exit_code_2(written, tmp_path, capsys):
    folder, _, _ = written
    scene = folder / "mvsnet"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "nothing").mkdir()
    for arguments, problem in [
        ([scene, tmp_path / "out"], "--to"),
        ([scene, scene, "--to", "colmap"], "same folder"),
        ([scene, tmp_path / "full", "--to", "colmap"], "not empty"),
        ([scene, tmp_path / "out", "--to", "colmap", "--depth", folder / "result"], "colmap-dense"),
        ([scene, tmp_path / "out", "--to", "colmap-dense"], "--depth"),
        ([scene, tmp_path / "out", "--to", "openmvs", "--depth", tmp_path / "nothing"], "named like a view"),
        ([scene, tmp_path / "out", "--to", "openmvs", "--cloud", "a.ply"], "nerfstudio"),
        ([scene, tmp_path / "out", "--to", "mvsnet", "--depth-range", 5, 2], "NEAR"),
        ([scene, tmp_path / "out", "--to", "mvsnet", "--kind", "nerfstudio"], "transforms.json"),
        ([tmp_path / "nothing", tmp_path / "out", "--to", "mvsnet"], "not a scene"),
        ([tmp_path / "none.pfm", tmp_path / "b.npz"], "no such file"),
        ([folder / "result/depth/00000000.npz", folder / "result/depth/00000000.npz"], "same file"),
        ([tmp_path / "none.ply", tmp_path / "b.pfm"], "choose one of .ply"),
    ]:
        assert convert(*arguments) == 2
        error = capsys.readouterr().err
        assert problem in error and error.count("\n") == 1, error
    assert not (tmp_path / "out").exists()
    assert convert(scene, tmp_path / "full", "--to", "colmap", "--overwrite") == 0
