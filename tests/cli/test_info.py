"""`gbinet info`: what it prints is what the folder holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gbinet.cli.main import main


def scene(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    frames = []
    for index in range(3):
        pixels = np.full((30, 40, 3), 60 * index, np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"v{index}.png")
        pose = np.eye(4)
        pose[0, 3] = 0.2 * index
        frames.append({"file_path": f"images/v{index}.png", "transform_matrix": pose.tolist()})
    top = {"fl_x": 40.0, "w": 40, "h": 30, "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(top))
    return folder


def test_table_picture_and_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "out" / "scene.png"
    assert main(["info", str(scene(tmp_path / "mine")), "--picture", str(picture)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "mine: nerfstudio" in printed and "views 3" in printed and "image size 40x30" in printed
    assert "warning:" in printed and "guess" in printed  # nothing but cameras says how deep it is
    assert str(picture).replace("\n", "") in printed
    with Image.open(picture) as image:
        assert image.width == 1600 and len(image.getcolors(1 << 20) or []) > 5


def test_the_users_range_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(scene(tmp_path / "mine")), "--depth-range", "1.5", "9"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "depth range 1.5 to 9" in printed and "warning" not in printed


def test_cameras_of_blank_photos_cannot_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycolmap")
    assert main(["info", str(scene(tmp_path / "mine")), "--check-cameras"]) == 0
    assert "cameras not checked" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "mine"), "--check-cameras", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["camera_check"] == {"pairs": 0, "matches": 0, "off": None}


def test_bare_photos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene(tmp_path)
    (tmp_path / "transforms.json").unlink()
    (tmp_path / "images" / "broken.jpg").write_bytes(b"x")
    assert main(["info", str(tmp_path), "--picture", str(tmp_path / "a.png"), "--check-cameras"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "No cameras were checked" in printed
    assert "No picture" in printed and not (tmp_path / "a.png").exists()
    assert "photos 4" in printed and "40x30 (3)" in printed and "gbinet reconstruct" in printed


def test_a_picture_needs_a_suffix_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(scene(tmp_path / "mine")), "--picture", str(tmp_path / "a.xyz")]) == 2
    assert "not a kind of image file" in capsys.readouterr().err


def test_no_scene_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tmp_path / "absent")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("dtu_scan37", ["views 49", "1600x1200", "depth range 425 to 935"]),
        ("fountain-P11", ["COLMAP model", "views 11", "1536x1024", "13,974"]),
        ("hololens-000", ["RGB-D", "views 32", "540x360", "depth 32 of 32 views"]),
        ("sceaux-castle-photos", ["photos 11", "1416x1064"]),
    ],
)
def test_shared_scenes(
    shared: Path, name: str, facts: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["info", str(shared / "scenes" / name)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert [fact for fact in facts if fact not in printed] == []
