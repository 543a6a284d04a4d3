"""Photos of one camera share it; photos held upright stay upright; the same photos give the same poses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from wall_photos import save_turned, wall_photos

from gbinet.cli.main import main
from gbinet.formats.depth_files import read_depth
from gbinet.formats.exif import Exif
from gbinet.formats.image import read_image
from gbinet.scenes.load import load_scene
from gbinet.scenes.sfm import PosedPhotos, pose_photos
from gbinet.scenes.sfm.cameras import InputPhoto, camera_groups, input_photo

pytest.importorskip("pycolmap")


def photo(name: str, size: tuple[int, int] = (40, 30), **exif: str | float) -> InputPhoto:
    return InputPhoto(Path(name), name, size, Exif(**exif))  # type: ignore[arg-type]


def test_photos_share_a_camera_when_size_and_exif_are_the_same() -> None:
    photos = [
        photo("a", make="K", focal_mm=5.0),
        photo("b", make="K", focal_mm=5.0),
        photo("c", make="K", focal_mm=9.0),  # zoomed
        photo("d", make="L", focal_mm=5.0),
        photo("e", (30, 40), make="K", focal_mm=5.0),
        photo("f"),
        photo("g"),
    ]
    assert camera_groups(photos) == [["a", "b"], ["c"], ["d"], ["e"], ["f", "g"]]


def test_the_flag_overrides_what_exif_says() -> None:
    photos = [photo("l/1", make="A"), photo("l/2", make="B"), photo("r/1"), photo("r/2", (30, 40))]
    assert camera_groups(photos, "shared") == [["l/1", "l/2", "r/1"], ["r/2"]]  # one camera has one size
    assert camera_groups(photos, "per-folder") == [["l/1", "l/2"], ["r/1"], ["r/2"]]
    assert camera_groups(photos, "per-photo") == [[p.name] for p in photos]


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PosedPhotos, list[np.ndarray]]:
    """Eight photos, one per EXIF orientation, from two cameras in turn, and their poses."""
    folder = tmp_path_factory.mktemp("turned")
    upright = wall_photos(8)
    (folder / "photos").mkdir()
    for number, pixels in enumerate(upright):
        path = folder / "photos" / f"a photo {number + 1}.jpg"
        save_turned(path, pixels, number + 1, "One" if number % 2 else "Two")
    return folder, pose_photos(folder / "photos", folder / "sfm"), upright


def test_two_cameras_in_one_folder_are_two(turned: tuple[Path, PosedPhotos, list[np.ndarray]]) -> None:
    _, posed, _ = turned
    assert len(posed.placed) == 8 and posed.outcome is not None
    # Upright: orientations 1 to 5 and 7 at 400 x 300; on their side, 6 and 8 of camera One at 300 x 400.
    found = sorted((c.width, c.height, c.photos) for c in posed.outcome.cameras)
    assert found == [(300, 400, 2), (400, 300, 2), (400, 300, 4)]
    assert all(c.focal == pytest.approx(380, rel=0.05) for c in posed.outcome.cameras)
    assert "8 of 8 photos posed with 3 cameras" in posed.summary() and posed.warnings() == []


def test_photos_of_all_orientations_come_out_upright(
    turned: tuple[Path, PosedPhotos, list[np.ndarray]],
) -> None:
    folder, _, upright = turned
    scene = load_scene(folder / "sfm", cache=folder / "cache")
    downs = []
    for view, pixels in zip(scene.views, upright, strict=True):
        found = read_image(view.image_path)
        assert found.shape[:2] == (view.camera.height, view.camera.width) and found.shape[1] > found.shape[0]
        as_large = np.asarray(Image.fromarray(pixels).resize((found.shape[1], found.shape[0])))
        assert np.corrcoef(found.ravel(), as_large.ravel())[0, 1] > 0.95
        downs.append(view.camera.cam_from_world[1, :3].numpy())
    assert (np.array(downs) @ downs[0]).min() > 0.99  # all cameras stand upright in one world
    points = scene.points
    assert points is not None
    for view in scene.views:  # and see the same points in front of them
        pixel, depth = view.camera.project(points.xyz)
        inside = (depth > 0) & (pixel[:, 0] >= 0) & (pixel[:, 0] <= view.camera.width)
        assert float(inside.double().mean()) > 0.3


def test_the_same_photos_give_the_same_poses(turned: tuple[Path, PosedPhotos, list[np.ndarray]]) -> None:
    folder, first, _ = turned
    again = pose_photos(folder / "photos", folder / "again")
    assert again.placed == first.placed
    for name in ("cameras.bin", "images.bin", "points3D.bin"):
        one, other = (folder / place / "sparse" / "0" / name for place in ("sfm", "again"))
        assert one.read_bytes() == other.read_bytes()


def test_photos_in_folders_are_read_for_a_camera_per_folder(tmp_path: Path) -> None:
    for number, pixels in enumerate(wall_photos(4, 320, 240)):
        side = tmp_path / "photos" / ("left" if number % 2 else "right")
        side.mkdir(parents=True, exist_ok=True)
        save_turned(side / "same name.jpg" if number < 2 else side / f"{number}.jpg", pixels)
    posed = pose_photos(tmp_path / "photos", tmp_path / "sfm", camera="per-folder")
    assert set(posed.placed) | set(posed.missing) == {
        "left/3.jpg", "left/same name.jpg", "right/2.jpg", "right/same name.jpg",
    }  # fmt: skip
    assert posed.outcome is not None and len(posed.outcome.cameras) <= 2


def test_a_tiff_on_its_side_is_rewritten(tmp_path: Path) -> None:
    """Pillow turns TIFF files by itself, COLMAP does not."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(tmp_path / "a.tif", exif=exif)
    found = input_photo(tmp_path / "a.tif", "a.tif")
    assert found.rewritten and found.size == (30, 40)


def test_report_and_record_say_what_came_of_it(
    turned: tuple[Path, PosedPhotos, list[np.ndarray]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way, at a small size: poses that are there already are taken up."""
    folder, posed, _ = turned
    shutil.copytree(folder / "sfm", folder / "out" / "sfm", symlinks=True)
    main(
        ["reconstruct", str(folder / "photos"), "-o", str(folder / "out"), "--max-size", "96", "--views", "2"]
    )
    assert posed.summary() in capsys.readouterr().out
    record = json.loads((folder / "out" / "run.json").read_text())
    assert record["poses"]["placed"] == list(posed.placed) and len(record["poses"]["cameras"]) == 3
    assert record["seconds"]["poses"] > 0 and record["poses"]["error"] < 1
    text = (folder / "out" / "report.html").read_text()
    assert "photos posed" in text and "Structure from motion" in text and "reprojection error" in text
    depth = read_depth(folder / "out" / "depth" / "a photo 6.npz")
    assert depth.shape[1] > depth.shape[0]  # it was stored on its side
