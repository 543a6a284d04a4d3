"""Which depth maps are finished: content decides, and nothing that is not ours is touched."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import Oracle
from PIL import Image

from gbinet.cluster.depth import estimate_depths_on
from gbinet.errors import GBiNetError
from gbinet.formats.made_by import maker_of
from gbinet.inference.depth_run import DepthRun
from gbinet.inference.finished import _settings
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.calibration import Calibration
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.scene import DepthRange, Scene

VIEWS = 3  # photos per depth map


def run(scene: Scene, out: Path, oracle: Oracle, *, overwrite: bool = False, **config: object) -> DepthRun:
    settings = DepthConfig(**{"views": VIEWS, **config})  # type: ignore[arg-type]
    return estimate_depths(scene, oracle, out, settings, overwrite=overwrite)  # type: ignore[arg-type]


def in_folder(scene: Scene, folder: Path) -> Scene:
    """The scene with its photos in another folder, stored so that every picture has the same size."""
    folder.mkdir(parents=True)
    views = []
    for view in scene.views:
        path = folder / f"{view.name}.bmp"
        Image.open(view.image_path).save(path)
        views.append(replace(view, image_path=path))
    return replace(scene, root=folder, views=tuple(views))


def alter_photo(path: Path) -> None:
    """One byte of the pixels, behind the back of size and time."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def with_view(scene: Scene, index: int, **changes: object) -> Scene:
    views = list(scene.views)
    views[index] = replace(views[index], **changes)  # type: ignore[arg-type]
    return replace(scene, views=tuple(views))


def made_from(scene: Scene, index: int) -> set[str]:
    """Views whose map is made from view `index`."""
    used = {v.name: {i, *v.best_sources()[: VIEWS - 1]} for i, v in enumerate(scene.views)}
    return {name for name, views in used.items() if index in views}


class World:
    """A scene, an output folder, and what people do to them."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.folder, self.copies = folder, 0
        self.scene = in_folder(scene, folder / "scene")
        self.out = folder / "out"
        self.oracle = Oracle(self.scene)

    def do(self, action: str, index: int) -> set[str]:
        """Do something; the names of the views whose maps must be made again."""
        view = self.scene.views[index]
        path = view.image_path
        if action == "touch":
            os.utime(path)
        elif action == "rename":
            path.rename(path.with_name("away.bmp")).rename(path)
        elif action == "copy":
            self.copies += 1
            target = self.folder / f"copy{self.copies}"
            shutil.copytree(self.scene.root, target / "scene")
            shutil.copytree(self.out, target / "out")
            moved = [replace(v, image_path=target / "scene" / v.image_path.name) for v in self.scene.views]
            self.scene = replace(self.scene, root=target / "scene", views=tuple(moved))
            self.out = target / "out"
        elif action == "mask":
            mask = self.folder / "mask.png"
            Image.fromarray(np.full((48, 64), 255, np.uint8)).save(mask)
            self.scene = with_view(self.scene, index, mask_path=mask)
        elif action == "photo":
            alter_photo(path)
            return made_from(self.scene, index)
        elif action == "camera":
            K = view.camera.K.clone()
            K[0, 2] = torch.nextafter(K[0, 2], K.new_tensor(1e9))
            self.scene = with_view(self.scene, index, camera=replace(view.camera, K=K))
            return made_from(self.scene, index)
        elif action == "range":
            assert view.depth_range is not None
            self.scene = with_view(
                self.scene, index, depth_range=DepthRange(view.depth_range.near, view.depth_range.far + 1e-9)
            )
            return {view.name}
        elif action == "weights":
            with torch.no_grad():
                self.oracle.weight += 1
            return {v.name for v in self.scene.views}
        return set()


ACTIONS = ("touch", "rename", "copy", "mask", "photo", "camera", "range", "weights")


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4)), min_size=1, max_size=4))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exactly_the_maps_that_depend_on_a_changed_byte_are_made_again(
    ball_scene: SceneMaker, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    world = World(ball_scene(), tmp_path_factory.mktemp("world"))
    assert len(run(world.scene, world.out, world.oracle).computed) == 5
    for action, index in steps:
        expected = world.do(action, index)
        result = run(world.scene, world.out, world.oracle, overwrite=action == "weights")
        assert set(result.computed) == expected, action
        assert set(result.kept) == {v.name for v in world.scene.views} - expected
    clean = world.folder / "clean"
    run(world.scene, clean, world.oracle)
    for path in clean.glob("*.npz"):
        assert path.read_bytes() == (world.out / path.name).read_bytes()


def test_what_replaced_a_broken_source_counts_and_the_rest_does_not(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = in_folder(ball_scene(views=6), tmp_path / "scene")
    oracle = Oracle(scene)
    good = scene.views[1].image_path.read_bytes()
    scene.views[1].image_path.write_bytes(b"no picture")
    run(scene, out := tmp_path / "out", oracle)  # the map of view 0 is made from 2 and 3 instead of 1 and 2
    alter_photo(scene.views[3].image_path)
    assert "000" in run(scene, out, oracle).computed
    alter_photo(scene.views[5].image_path)
    assert "000" in run(scene, out, oracle).kept
    scene.views[1].image_path.write_bytes(good)
    assert set(run(scene, out, oracle).computed) == made_from(scene, 1)


def inverted(scene: Scene) -> None:
    """Other pictures under the same names, of the same sizes."""
    for view in scene.views:
        pixels = np.asarray(Image.open(view.image_path))
        Image.fromarray(255 - pixels).save(view.image_path)


def test_photos_that_were_all_replaced_are_computed_again(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = in_folder(ball_scene(), tmp_path / "scene")
    run(scene, out := tmp_path / "out", Oracle(scene))
    inverted(scene)
    assert len(run(scene, out, Oracle(scene)).computed) == 5


def test_photos_of_another_folder_are_refused_without_overwrite(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    """Same names, same sizes, other pictures: nothing stale is used, and nothing is lost by mistake."""
    scene = in_folder(ball_scene(), tmp_path / "scene")
    run(scene, out := tmp_path / "out", Oracle(scene))
    before = {p.name: p.read_bytes() for p in out.glob("*.npz")}
    other = in_folder(ball_scene(), tmp_path / "other")
    inverted(other)
    with pytest.raises(GBiNetError, match=r"of other photos.*--overwrite"):
        run(other, out, Oracle(other))
    assert {p.name: p.read_bytes() for p in out.glob("*.npz")} == before
    assert len(run(other, out, Oracle(other), overwrite=True).computed) == 5


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped bit"])
def test_a_damaged_map_is_made_again(ball_scene: SceneMaker, tmp_path: Path, damage: str) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    run(scene, out := tmp_path / "out", oracle)
    path = out / "002.npz"
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    path.write_bytes({"empty": b"", "cut": whole[:middle], "flipped bit": flipped}[damage])
    result = run(scene, out, oracle)
    assert result.computed == ["002"] and path.read_bytes() == whole
    assert any("damaged: 002" in note for note in result.warnings)


def test_only_what_we_wrote_is_ever_removed(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    run(scene, out := tmp_path / "out", oracle)
    foreign = [out / "mine.npz", out / "sub" / "thesis_data.npz", out / "copy of 000.npz", out / "notes.txt"]
    for path in foreign[:2]:
        path.parent.mkdir(exist_ok=True)
        np.savez(path, depth=np.ones((3, 3)))
    shutil.copyfile(out / "000.npz", foreign[2])  # it says that it is ours; its name was never recorded
    foreign[3].write_text("x")
    before = {path: path.read_bytes() for path in foreign}
    assert len(run(scene, out, oracle, overwrite=True, views=4).computed) == 5
    assert {path: path.read_bytes() for path in foreign} == before
    fewer = replace(ball_scene(views=3), root=scene.root)
    run(fewer, out, Oracle(fewer), overwrite=True, max_size=64)
    assert not (out / "004.npz").exists()  # recorded, of other settings
    assert {path: path.read_bytes() for path in foreign} == before


def test_a_foreign_file_in_the_way_is_named_and_stays(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    out = tmp_path / "out"
    out.mkdir()
    np.savez(out / "003.npz", depth=np.ones((3, 3)))
    before = (out / "003.npz").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(GBiNetError, match=r"003\.npz already exists and was not written.*move it"):
            run(scene, out, Oracle(scene), overwrite=overwrite)
    assert [p.name for p in out.iterdir()] == ["003.npz"] and (out / "003.npz").read_bytes() == before


def test_photos_with_another_lens_are_the_same_photos(ball_scene: SceneMaker, tmp_path: Path) -> None:
    """Structure from motion anew, and every undistorted copy has other bytes: all is made again, unasked."""
    scene = ball_scene()
    for lens in ("first", "second"):
        copies = in_folder(scene, tmp_path / lens)
        views = zip(copies.views, scene.views, strict=True)
        rewritten = replace(copies, views=tuple(replace(c, original_path=v.image_path) for c, v in views))
        for view in rewritten.views if lens == "second" else ():
            alter_photo(view.image_path)
        result = run(rewritten, tmp_path / "out", Oracle(rewritten))
        assert len(result.computed) == len(scene.views)


@pytest.mark.parametrize("what", ["folder", "pipe", "device"])
def test_a_folder_or_pipe_in_place_of_a_map_is_named_and_stays(
    ball_scene: SceneMaker, tmp_path: Path, what: str
) -> None:
    scene = ball_scene()
    run(scene, out := tmp_path / "out", Oracle(scene))
    path = out / "003.npz"
    path.unlink()
    make = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
    }
    make[what]()
    for overwrite in (False, True):
        with pytest.raises(GBiNetError, match=r"003\.npz already exists and was not written.*move it"):
            run(scene, out, Oracle(scene), overwrite=overwrite)
    assert os.path.lexists(path)


def test_an_edited_record_does_not_lead_out_of_the_folder(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    run(scene, out := tmp_path / "out", oracle)
    shutil.copyfile(out / "000.npz", tmp_path / "precious.npz")
    record = json.loads((out / "settings.json").read_text())
    record["maps"] += ["../precious.npz", str(tmp_path / "precious.npz"), 7, None]
    (out / "settings.json").write_text(json.dumps(record))
    run(scene, out, oracle, overwrite=True, views=2)
    assert (tmp_path / "precious.npz").exists()


@pytest.mark.parametrize("content", [None, "{", "[]", "null", "[" * 100_000])
def test_a_lost_or_broken_record_does_not_discard_maps(
    ball_scene: SceneMaker, tmp_path: Path, content: str | None
) -> None:
    scene = ball_scene(views=3)
    oracle = Oracle(scene)
    run(scene, out := tmp_path / "out", oracle)
    for name in ("settings.json", "fingerprints.json"):
        if content is None:
            (out / name).unlink(missing_ok=True)
        else:
            (out / name).write_text(content)
    assert len(run(scene, out, oracle).kept) == 3
    assert sorted(json.loads((out / "settings.json").read_text())["maps"]) == [
        "000.npz",
        "001.npz",
        "002.npz",
    ]


def test_a_map_says_who_made_it(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2)
    oracle = Oracle(scene)
    run(scene, tmp_path, oracle)
    maker = maker_of(tmp_path / "000.npz")
    assert maker is not None and maker["program"] == "gbinet" and maker["weights"]
    assert json.loads(str(np.load(tmp_path / "000.npz")["made_by"])) == maker


def test_a_failed_run_leaves_no_empty_folder(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2)
    oracle = Oracle(scene)
    for view in scene.views:
        view.image_path.write_bytes(b"no picture")
    with pytest.raises(GBiNetError, match="no view could be done"):
        run(scene, tmp_path / "out" / "depth", oracle)
    assert not (tmp_path / "out").exists()


def test_nor_does_a_failed_run_of_a_cluster(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, out = ball_scene(views=2), tmp_path / "out" / "depth"
    failed = DepthRun(failed={view.name: "is broken" for view in scene.views})
    monkeypatch.setattr("gbinet.cluster.depth._compute", lambda *_: failed)
    with pytest.raises(GBiNetError, match="no view could be done; 000: is broken"):
        estimate_depths_on(None, scene, Oracle(scene), out, DepthConfig())  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_settings_beside_finished_maps_survive_a_failure(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    run(scene, out := tmp_path / "out", oracle)
    (out / "001.npz").unlink()
    oracle.memory_for_pixels = 1
    with pytest.raises(GBiNetError, match="not enough memory"):
        run(scene, out, oracle)
    oracle.memory_for_pixels = None
    assert run(scene, out, oracle).computed == ["001"]


def test_an_option_added_later_is_not_in_the_settings_at_its_default() -> None:
    """Versions before that part wrote the same settings, and their maps are kept."""
    network = GBiNet(GBiNetConfig(choice_widths=(4, 4, 4)))
    known = _settings(network, DepthConfig(), "weights")["configuration of the network"]
    assert "choice_again" not in known and "choice_widths" in known
    again = GBiNet(GBiNetConfig(choice_widths=(4, 4, 4), choice_again=True))
    assert _settings(again, DepthConfig(), "weights")["configuration of the network"]["choice_again"]


def test_maps_of_another_calibration_are_not_kept(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    run(scene, tmp_path / "out", oracle)
    oracle.calibration = Calibration([0.0, 1.0], [0.0, 0.5])
    with pytest.raises(GBiNetError, match="other calibration"):
        run(scene, tmp_path / "out", oracle)
    assert len(run(scene, tmp_path / "out", oracle, overwrite=True).computed) == len(scene.views)
    assert not run(scene, tmp_path / "out", oracle).computed
    oracle.calibration = None  # type: ignore[assignment]
    with pytest.raises(GBiNetError, match="other calibration"):
        run(scene, tmp_path / "out", oracle)
