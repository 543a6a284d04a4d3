"""DTU, BlendedMVS, Tanks and Temples: published splits, and small trees of the same layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import posed_folders as folders
import pytest

from gbinet.errors import InputError, SceneError
from gbinet.formats.image import image_size, read_image
from gbinet.scene import DepthRange
from gbinet.scenes import blendedmvs, dtu, load_scene, tanks


def test_published_counts() -> None:
    assert [len(set(s)) for s in (dtu.TRAIN, dtu.VALIDATION, dtu.TEST)] == [79, 18, 22]
    assert not set(dtu.TRAIN) & set(dtu.VALIDATION) | set(dtu.TEST) & (set(dtu.TRAIN) | set(dtu.VALIDATION))
    samples = dtu.samples("train")
    assert len(samples) == len(set(samples)) == 27_097
    assert len(dtu.samples("val")) == 18 * 49 * 7
    assert {len(name) for name in blendedmvs.scenes("all")} == {24}
    assert (len(set(blendedmvs.TRAIN)), len(set(blendedmvs.VALIDATION))) == (106, 7)
    assert len(set(blendedmvs.scenes("all"))) == 113
    assert (len(tanks.INTERMEDIATE), len(tanks.ADVANCED)) == (8, 6)
    for listing in (dtu.scans, blendedmvs.scenes, tanks.scenes):
        with pytest.raises(InputError, match="'other' is not a split"):
            listing("other")


@pytest.mark.parametrize("small", [False, True])
def test_dtu_training_set(small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folders.dtu_training(tmp_path, [2, 6], small=small)
    monkeypatch.setitem(dtu.SPLITS, "train", (2, 6))
    scenes = dtu.load_set(root, "train")
    assert len(scenes) == 2 * 7 and sum(len(s.views) for s in scenes) == 2 * 7 * 3
    assert len({view.image_path for scene in scenes for view in scene.views}) == 42
    for scene in scenes:
        for index, view in enumerate(scene.views):
            assert view.depth_path is not None and view.depth_path.is_file()
            assert view.mask_path is not None and view.mask_path.is_file()
            assert view.depth_range == DepthRange(425, 935)
            assert [s.index for s in view.sources]
            assert image_size(view.image_path) == (view.camera.width, view.camera.height)
            assert np.allclose(view.camera.K.numpy(), folders.K)
            assert np.allclose(view.camera.cam_from_world.numpy(), folders.cam_from_world(index))
    # Lighting 5 of view 1 is file rect_002_5: images count from 1.
    fifth = dtu.load_scan(root, 6, light=5)
    assert fifth.views[1].image_path.name == "rect_002_5_r5000.png"
    assert np.array_equal(read_image(fifth.views[1].image_path), folders.pixels(6))
    with pytest.raises(SceneError, match="no such scan"):
        dtu.load_scan(root, 7)
    with pytest.raises(InputError, match="lightings"):
        dtu.load_scan(root, 2, light=7)


def test_load_scene_takes_one_scan_of_the_training_set(tmp_path: Path) -> None:
    root = folders.dtu_training(tmp_path / "dtu", [2])
    scene = load_scene(root / "Rectified_raw" / "scan2")
    assert (scene.kind, len(scene.views)) == ("dtu", 3)
    with pytest.raises(SceneError, match="Rectified_raw/scan2"):
        load_scene(root)


def test_dtu_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scan in (1, 4):
        folders.mvsnet(tmp_path / f"scan{scan}", tail="425 2.5")
    monkeypatch.setitem(dtu.SPLITS, "test", (1, 4))
    scenes = dtu.load_set(tmp_path, "test")
    assert [(s.name, s.kind, len(s.views)) for s in scenes] == [("scan1", "dtu", 4), ("scan4", "dtu", 4)]
    assert scenes[0].views[0].depth_range == DepthRange(425, 935)


def test_blendedmvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("5c1f33f1d33e1f2e4aa6dda4", "5bfe5ae0fe0ea555e6a969ca")
    for name, count in zip(names, (3, 5), strict=True):
        folders.blendedmvs(tmp_path / name, count)
    monkeypatch.setitem(blendedmvs.SPLITS, "train", names)
    scenes = blendedmvs.load_set(tmp_path, "train")
    assert [scene.kind for scene in scenes] == ["blendedmvs", "blendedmvs"]
    assert [len(scene.views) for scene in scenes] == [3, 5]  # the masked twins are not views
    assert blendedmvs.count_samples(scenes) == 8
    assert blendedmvs.count_samples(scenes, min_sources=4) == 5
    view = scenes[0].views[0]
    assert view.depth_range == DepthRange(2, 8)
    assert view.depth_path is not None and view.depth_path.suffix == ".pfm"


def test_a_folder_that_is_another_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(
        SceneError, match=r"mine is not BlendedMVS's training set: its first training scene 5c1f"
    ):
        blendedmvs.load_set(tmp_path / "mine", "train")
    with pytest.raises(SceneError, match=r"mine does not hold DTU: neither Cameras/pair\.txt nor scan2"):
        dtu.load_set(tmp_path / "mine", "train")


def test_tanks_takes_short_range_cameras(tmp_path: Path) -> None:
    family = tmp_path / "intermediate" / "Family"
    folders.mvsnet(family, tail="1 0.1 256 90")
    assert tanks.load_scan(tmp_path, "Family").views[0].depth_range == DepthRange(1, 90)
    short = tmp_path / "intermediate" / "short_range_caemeras_for_mvsnet" / "cams_family"
    short.mkdir(parents=True)
    for index in range(4):
        (short / f"{index:08d}_cam.txt").write_text(folders.cam_text(index, "0.5 0.01"))
    scene = tanks.load_scan(tmp_path, "Family")
    assert scene.kind == "tanks"
    assert scene.views[0].depth_range == DepthRange(0.5, 0.5 + 0.01 * 255)
    short.rename(family / "cams_family")
    assert load_scene(family).views[0].depth_range == scene.views[0].depth_range
    assert tanks.load_scan(tmp_path, "Family").views[0].depth_range == scene.views[0].depth_range
    folders.mvsnet(tmp_path / "advanced" / "Temple", tail="1 0.1 256 30")
    assert tanks.load_scan(tmp_path, "Temple").views[0].depth_range == DepthRange(1, 30)
    with pytest.raises(SceneError, match="no scene Horse"):
        tanks.load_scan(tmp_path, "Horse")
