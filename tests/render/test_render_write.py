"""What is written is read back by the project's own readers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gbinet.cli.main import main
from gbinet.errors import FormatError, InputError, SceneError
from gbinet.render import AssetLibrary, make_scene, validation_samples
from gbinet.render.assets import read_mesh
from gbinet.render.write import WriteConfig, write_dataset
from gbinet.scenes.dataset import MVSDataset, SampleConfig
from gbinet.scenes.load import load_scene

OPTIONS = ["--scenes", "1", "--views", "3", "--size", "64x48", "--scene-kind", "facade", "--device", "cpu"]


@pytest.mark.parametrize("layout", ["mvsnet", "blendedmvs"])
def test_written_scenes_are_read_back(
    tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["render", str(tmp_path / "set"), *OPTIONS, "--layout", layout, "--units-per-metre", "1000"]
    assert main(command) == 0
    assert "1 scenes of 3 photos" in capsys.readouterr().out
    folder = tmp_path / "set" / "scene0000"
    scene = load_scene(folder)
    assert scene.kind == layout and not scene.warnings
    assert len(scene.views) == 3
    assert all(len(view.sources) == 2 for view in scene.views)
    sample = MVSDataset([scene], SampleConfig(num_views=3))[0]
    near, far = sample.depth_range[0].tolist()
    known = sample.depth[0][sample.mask[0]]
    assert sample.images.shape == (1, 3, 3, 48, 64)
    assert float(((known >= near) & (known <= far)).float().mean()) > 0.95
    assert near > 100  # millimetres
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.*")}
    assert main(command) == 0  # nothing is rendered twice
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*.*")}
    assert main([*command, "--seed", "5"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_bad_configurations_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(tmp_path / "a"), "--size", "big"]) == 2
    assert "WIDTHxHEIGHT" in capsys.readouterr().err
    assert main(["render", str(tmp_path / "b"), "--assets", str(tmp_path / "none"), *OPTIONS]) == 2
    assert "no such asset folder" in capsys.readouterr().err
    for options, said in (
        (["--device", "nonsense"], "'nonsense' cannot be used"),
        (["--seed", "-1"], "--seed"),
    ):
        assert main(["render", str(tmp_path / "c"), *OPTIONS, *options]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
    with pytest.raises(InputError, match="layouts"):
        write_dataset(tmp_path, WriteConfig(layout="colmap"))


def make_library(root: Path, count: int = 9) -> Path:
    """A folder of small objects: tetrahedra with a texture each."""
    from PIL import Image

    (root / "gso").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        corners = np.array([[0, 0, 0], [65535, 0, 0], [0, 65535, 0], [0, 0, 65535]], np.uint16)
        np.savez(
            root / "gso" / f"thing{i}.npz",
            p=corners,
            uv=corners[:, :2],
            lo=np.zeros(3, np.float32),
            hi=np.full(3, 0.2, np.float32),
            f=np.array([[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]], np.uint16),
        )
        pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "gso" / f"thing{i}.jpg")
    return root


def test_libraries_are_split_and_used(tmp_path: Path) -> None:
    root = make_library(tmp_path / "library")
    training, held_out = AssetLibrary.open(root), AssetLibrary.open(root, held_out=True)
    assert {p.stem for p in held_out.objects} == {"thing0", "thing8"}
    assert len(training.objects) == 7 and not set(training.objects) & set(held_out.objects)
    asset = training.preload(2).asset(training.objects[0])
    assert asset.extent == (1.0, 1.0, 1.0)
    assert asset.metres == pytest.approx(0.2)
    assert float(asset.mesh.positions[:, 2].min()) == 0
    scene = make_scene(3, training, "table")
    again = make_scene(3, training, "table")
    assert torch.equal(scene.vertices, again.vertices)


def test_a_folder_of_libraries_is_all_of_them(tmp_path: Path) -> None:
    first, second = (make_library(tmp_path / name) for name in ("a", "b"))
    both = AssetLibrary.open(tmp_path)
    assert both.objects == AssetLibrary.open(first).objects + AssetLibrary.open(second).objects
    alone, chosen = (
        next(validation_samples("assets", folder, size=(32, 24), scenes=1)) for folder in (first, tmp_path)
    )
    assert torch.equal(alone.images, chosen.images)  # the old validation set is that of the first library


def test_thin_objects_are_found_by_whole_words(tmp_path: Path) -> None:
    thin = ["fern_02", "fair_flags_line", "garden_painteasel02", "outterlamp", "signpost", "Red_Scissors"]
    thin += ["AnisotropyBarnLamp", "pot_plant", "landing_NET"]
    solid = ["gothic_cabinet_01", "VEGGIE_CRACKERS", "Netgear_Router", "Wireless_Keyboard", "Light_Brown_25"]
    solid += ["compost_bag_02", "Pony_C_Clamp", "Plant_Pot_GP9", "Planter_Bowl", "Plant_Saucer", "tree_stump"]
    (tmp_path / "polyhaven").mkdir()
    for name in (*thin, *solid):
        (tmp_path / "polyhaven" / f"{name}.npz").touch()
    parts = [AssetLibrary.open(tmp_path, held_out=held_out) for held_out in (False, True)]
    assert sorted(p.stem for part in parts for p in part.thin) == sorted(thin)


def test_broken_libraries_are_named(tmp_path: Path) -> None:
    root = make_library(tmp_path / "library", 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SceneError, match="no objects"):
        AssetLibrary.open(tmp_path / "empty")
    library = AssetLibrary.open(root)
    path = library.objects[0]
    path.with_suffix(".jpg").write_bytes(b"no image")
    with pytest.raises(FormatError, match=path.stem):
        library.asset(path)
    path.write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(FormatError, match="arrays"):
        library.asset(path)
    np.savez(
        path,
        p=np.zeros((4, 3), np.uint16),
        uv=np.zeros((4, 2)),
        lo=np.zeros(3),
        hi=np.ones(3),
        f=np.full((1, 3), 9),
    )
    with pytest.raises(FormatError, match="do not exist"):
        library.asset(path)


def test_a_library_that_is_all_held_back_says_so(tmp_path: Path) -> None:
    for name in ("meshes/a.obj", "textures/a.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with pytest.raises(SceneError, match="1 mesh and 1 texture, but the first of every eight is held back"):
        AssetLibrary.open(tmp_path)
    (tmp_path / "meshes" / "b.obj").touch()
    assert [p.name for p in AssetLibrary.open(tmp_path).objects] == ["b.obj"]


def test_meshes_without_trimesh_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(SceneError, match=r"a\.obj: .*pip install 'gbinet\[assets\]'"):
        read_mesh(tmp_path / "a.obj")


def test_own_meshes_are_read(tmp_path: Path) -> None:
    """OBJ has y up; ours is z up."""
    pytest.importorskip("trimesh")
    (tmp_path / "meshes").mkdir()
    text = "v 0 0 0\nv 1 0 0\nv 0 2 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n"
    for name in ("a", "b"):
        (tmp_path / "meshes" / f"{name}.obj").write_text(text)
    library = AssetLibrary.open(tmp_path)
    asset = library.any_object(np.random.default_rng(0))
    assert asset.extent == (0.5, 0.5, 1.0)
    assert len(asset.mesh.faces) == 4
    (tmp_path / "meshes" / "b.obj").write_text("v 0 0 0\n")
    with pytest.raises(FormatError, match=r"b\.obj"):
        AssetLibrary.open(tmp_path).asset(tmp_path / "meshes" / "b.obj")
