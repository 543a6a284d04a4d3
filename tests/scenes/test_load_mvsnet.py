"""Folders in MVSNet's layout: ranges, pairs, and what is missing or broken in them."""

from __future__ import annotations

from pathlib import Path

import posed_folders as folders
import pytest
from PIL import Image

from gbinet.errors import FormatError
from gbinet.scene import DepthRange
from gbinet.scenes import load_scene


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("425 2.5", DepthRange(425, 935)),
        ("2 0.02 100", DepthRange(2, 2 + 0.02 * 99)),
        ("2 0.02 100 9", DepthRange(2, 9)),
        ("2 9", DepthRange(2, 9)),
    ],
)
def test_ranges_of_cam_files(tail: str, expected: DepthRange, tmp_path: Path) -> None:
    view = load_scene(folders.mvsnet(tmp_path, tail=tail)).views[0]
    assert view.depth_range is not None
    found = (view.depth_range.near, view.depth_range.far)
    assert found == pytest.approx((expected.near, expected.far))


@pytest.mark.parametrize("spelling", [".", "images/.."])
def test_the_folder_has_its_name_however_it_is_spelt(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders.mvsnet(tmp_path / "Horse", tail="2.0 0.1")
    monkeypatch.chdir(folder)
    here = load_scene(spelling)
    assert here.name == "Horse"
    assert here.views[0].depth_range == load_scene(folder).views[0].depth_range == DepthRange(2.0, 27.5)


def test_interval_scale_stretches_only_two_number_tails(tmp_path: Path) -> None:
    scene = load_scene(folders.mvsnet(tmp_path / "a", tail="425 2.5"), interval_scale=1.0)
    assert scene.views[0].depth_range == DepthRange(425, 425 + 2.5 * 255)
    scene = load_scene(folders.mvsnet(tmp_path / "b", tail="425 2.5 256 900"), interval_scale=1.0)
    assert scene.views[0].depth_range == DepthRange(425, 900)


def test_unusable_range_in_a_cam_file_is_replaced_with_a_warning(tmp_path: Path) -> None:
    scene = load_scene(folders.mvsnet(tmp_path, tail="-0.5 0.02 100 9"))
    folders.check(scene)
    assert any("unusable" in w for w in scene.warnings) and any("guess" in w for w in scene.warnings)
    view = scene.views[0]
    assert view.depth_range is not None and view.depth_range.near < 4 < view.depth_range.far


def test_short_range_cameras_win(tmp_path: Path) -> None:
    folders.mvsnet(tmp_path, tail="1 100")
    (tmp_path / "cams").rename(tmp_path / "cams_long")
    folders.mvsnet(tmp_path, tail="2 8", cams="cams_1")
    (tmp_path / "cams_long").rename(tmp_path / "cams")
    assert load_scene(tmp_path).views[0].depth_range == DepthRange(2, 8)


def test_without_pair_file_views_are_ranked_by_geometry(tmp_path: Path) -> None:
    scene = load_scene(folders.mvsnet(tmp_path, pairs=False))
    folders.check(scene)
    assert len(scene.views[0].sources) == 3


def test_missing_and_broken_images_cost_only_their_views(tmp_path: Path) -> None:
    folders.mvsnet(tmp_path, count=5)
    (tmp_path / "images" / "00000001.png").unlink()
    (tmp_path / "images" / "00000003.png").write_bytes(b"not an image")
    scene = load_scene(tmp_path)
    folders.check(scene)
    assert [v.name for v in scene.views] == ["00000000", "00000002", "00000004"]
    assert {s.index for s in scene.views[0].sources} == {1, 2}
    assert len(scene.warnings) == 3  # the camera without image, the broken image, pair.txt


def test_images_resized_without_their_cameras_are_noticed(tmp_path: Path) -> None:
    folders.mvsnet(tmp_path)
    assert load_scene(tmp_path).warnings == ()
    for path in (tmp_path / "images").iterdir():
        image = Image.open(path)
        image.resize((image.width // 2, image.height // 2)).save(path)
    (warning,) = load_scene(tmp_path).warnings
    assert "4 of 4" in warning and "resized" in warning


def test_photos_that_were_all_taken_from_one_place_are_noticed(tmp_path: Path) -> None:
    """Their coverage is 100 %, and nothing else speaks against them."""
    folders.mvsnet(tmp_path)
    cams = sorted((tmp_path / "cams").iterdir())
    for path in cams[1:]:
        path.write_bytes(cams[0].read_bytes())
    (warning,) = load_scene(tmp_path).warnings
    assert "all sources of 4 of 4 views were taken where these were" in warning
    cams[3].write_text(folders.cam_text(3, "2.0 0.02"))  # one from elsewhere is enough
    assert load_scene(tmp_path).warnings == ()


def test_masks_that_fit_no_image_are_reported(tmp_path: Path) -> None:
    folders.mvsnet(tmp_path / "scene")
    (tmp_path / "mine").mkdir()
    Image.new("L", (64, 48), 255).save(tmp_path / "mine" / "00000001.png")
    (warning,) = load_scene(tmp_path / "scene", masks=tmp_path / "mine").warnings
    assert "no mask for 3 of 4 views (first: 00000000)" in warning


def test_broken_camera_is_named(tmp_path: Path) -> None:
    folders.mvsnet(tmp_path)
    path = tmp_path / "cams" / "00000002_cam.txt"
    path.write_text(path.read_text().replace("60.0 0.0", "-60.0 0.0"))
    with pytest.raises(FormatError, match=r"00000002_cam\.txt.*focal length"):
        load_scene(tmp_path)


def test_a_photo_without_a_camera_is_named(tmp_path: Path) -> None:
    folder = folders.mvsnet(tmp_path, count=5)
    gone = sorted((folder / "cams").glob("*_cam.txt"))[3]
    gone.unlink()
    scene = load_scene(folder)
    assert len(scene.views) == 4
    name = gone.name.removesuffix("_cam.txt")
    assert any("no camera file" in text and name in text for text in scene.warnings)
