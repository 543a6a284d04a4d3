from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shifted_photos import shifted_photos
from test_outcome import GOOD

from gbinet.errors import GBiNetError, SceneError
from gbinet.formats.fingerprint import Fingerprints
from gbinet.scenes.load import load_scene
from gbinet.scenes.sfm import pose_photos
from gbinet.scenes.sfm.pose import VERSION, _read_finished

pytest.importorskip("pycolmap")


def test_one_photo_is_not_enough(tmp_path: Path) -> None:
    shifted_photos(tmp_path / "photos", 1, 10)
    with pytest.raises(SceneError, match="at least 2 photos"):
        pose_photos(tmp_path / "photos", tmp_path / "sfm")


@pytest.mark.parametrize("count", [2, 40])
def test_copies_of_one_photo_are_reported(tmp_path: Path, count: int) -> None:
    shifted_photos(tmp_path / "photos", 1, 0)
    for i in range(1, count):
        shutil.copyfile(tmp_path / "photos" / "p0.png", tmp_path / "photos" / f"p{i}.png")
    with pytest.raises(SceneError, match=f"all {count} photos are copies of p0.png.*different places"):
        pose_photos(tmp_path / "photos", tmp_path / "sfm")


def test_copies_and_broken_photos_are_left_out_and_named(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    shifted_photos(photos, 3, 24)
    shutil.copyfile(photos / "p1.png", photos / "p9.png")
    (photos / "broken.jpg").write_bytes(b"not a photo")
    result = pose_photos(photos, tmp_path / "sfm")
    assert set(result.placed) | set(result.missing) == {"p0.png", "p1.png", "p2.png"}
    assert result.copies == ("p9.png",) and result.broken == ("broken.jpg",)
    assert any("copies" in text and "p9.png" in text for text in result.warnings())
    assert pose_photos(photos, tmp_path / "sfm") == result


def test_photos_from_one_place_fail_with_advice(tmp_path: Path) -> None:
    """The same view, stored anew each time: no two files are the same."""
    shifted_photos(tmp_path / "photos", 4, 0)
    for i, path in enumerate(sorted((tmp_path / "photos").iterdir())):
        Image.open(path).save(path.with_suffix(".jpg"), quality=95 - i)
        path.unlink()
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"not a photo")
    seen: list[str] = []
    with pytest.raises(SceneError, match="different places"):
        pose_photos(tmp_path / "photos", tmp_path / "sfm", lambda done, total, what: seen.append(what))
    assert any("features" in what for what in seen) and any("comparing" in what for what in seen)


def test_a_finished_result_is_found_again(tmp_path: Path) -> None:
    shifted_photos(tmp_path / "photos", 2, 10)
    out = tmp_path / "sfm"
    (out / "sparse" / "0").mkdir(parents=True)
    hashes = Fingerprints(out / "fingerprints.json")
    known = [[p.name, hashes.of(p)] for p in sorted((tmp_path / "photos").iterdir())]
    lists = {"placed": ["p0.png"], "missing": ["p1.png"], "broken": [], "copies": []}
    content = {"photos": known, "camera": "auto", "version": VERSION, **lists, "outcome": GOOD.to_dict()}
    (out / "sfm.json").write_text(json.dumps(content))
    result = pose_photos(tmp_path / "photos", out)
    assert result.placed == ("p0.png",)
    assert result.warnings()[-1] == "1 of 2 photos could not be placed: p1.png"
    assert result.outcome == GOOD


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", {"matching": "long"}),
        ("seconds", 5),
        ("compared", "by hand"),
        ("error", "small"),
        ("points", math.inf),
        ("cameras", [5]),
    ],
)
def test_a_damaged_record_of_poses_is_none(tmp_path: Path, key: str, value: object) -> None:
    """Found out when it is read, not when its figures are printed after hours."""
    (tmp_path / "sparse" / "0").mkdir(parents=True)
    lists = {"placed": ["p0.png"], "missing": [], "broken": [], "copies": []}
    content = {"photos": [], **lists, "outcome": GOOD.to_dict()}
    for damage, found in (({}, True), ({key: value}, False)):
        stored = {**content, "outcome": {**GOOD.to_dict(), **damage}}
        (tmp_path / "sfm.json").write_text(json.dumps(stored))
        assert (_read_finished(tmp_path, {"photos": []}) is not None) == found


@pytest.mark.slow
def test_real_photos_get_poses_and_keep_them(shared: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in sorted((shared / "scenes" / "sceaux-castle-photos").glob("*.JPG"))[:4]:
        image = Image.open(path)
        image.resize((image.width // 2, image.height // 2)).save(photos / path.name, quality=92)
    first = pose_photos(photos, tmp_path / "sfm")
    assert len(first.placed) >= 3
    seen: list[str] = []
    again = pose_photos(photos, tmp_path / "sfm", lambda done, total, what: seen.append(what))
    assert again == first and not seen
    scene = load_scene(tmp_path / "sfm", cache=tmp_path / "cache")
    assert len(scene.views) == len(first.placed) and all(view.sources for view in scene.views)


def test_a_nearly_full_disk_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted_photos(tmp_path / "photos", 2, 10)
    usage = shutil.disk_usage(tmp_path)._replace(free=5 << 20)
    monkeypatch.setattr("gbinet.scenes.sfm.pose.shutil.disk_usage", lambda _: usage)
    with pytest.raises(GBiNetError, match="12 MiB of disk, 5 MiB are free"):
        pose_photos(tmp_path / "photos", tmp_path / "sfm")


def test_other_photos_of_the_same_names_and_sizes_are_placed_anew(tmp_path: Path) -> None:
    """Poses, and features in the database of a stopped run, belong to pictures and not to names."""
    photos, out = tmp_path / "photos", tmp_path / "sfm"
    shifted_photos(photos, 3, 20)
    for path in photos.iterdir():
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    first = pose_photos(photos, out)
    model = (out / "sparse" / "0" / "points3D.bin").read_bytes()
    os.utime(photos / "p1.bmp")
    assert pose_photos(photos, out) == first
    assert (out / "sparse" / "0" / "points3D.bin").read_bytes() == model
    for path in photos.iterdir():
        Image.fromarray(255 - np.asarray(Image.open(path))[::-1]).save(path)
    pose_photos(photos, out)
    assert (out / "sparse" / "0" / "points3D.bin").read_bytes() != model


@pytest.mark.slow
def test_only_our_own_links_are_replaced_and_they_follow_moved_photos(tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "sfm"
    shifted_photos(photos, 4, 20)
    first = pose_photos(photos, out)
    (out / "images" / "mine.txt").write_text("x")
    moved = photos.rename(tmp_path / "moved")
    assert pose_photos(moved, out) == first
    assert all((out / "images" / name).is_file() for name in first.placed)
    (moved / "p3.png").unlink()  # other photos: structure from motion starts afresh
    pose_photos(moved, out)
    assert sorted(p.name for p in (out / "images").iterdir()) == ["mine.txt", "p0.png", "p1.png", "p2.png"]
    shifted_photos(moved, 4, 20)
    (out / "images" / "p3.png").write_text("not a photo of ours")
    with pytest.raises(GBiNetError, match=r"p3\.png already exists"):
        pose_photos(moved, out)
    assert (out / "images" / "p3.png").read_text() == "not a photo of ours"
