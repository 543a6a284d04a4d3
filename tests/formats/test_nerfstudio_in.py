"""transforms.json: axes, where intrinsics stand, lenses, and what is wrong with broken files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbinet.errors import FormatError
from gbinet.formats.nerfstudio import read_transforms

POSE = [[1.0, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]]


def written(folder: Path, **top: Any) -> Path:
    path = folder / "transforms.json"
    frame = {"file_path": "images/a.png", "transform_matrix": POSE}
    path.write_text(json.dumps({"fl_x": 100.0, "w": 64, "h": 48, "frames": [frame], **top}))
    return path


def rotation(axis: list[float]) -> np.ndarray:
    """Rodrigues' formula."""
    angle = float(np.linalg.norm(axis))
    x, y, z = np.array(axis) / max(angle, 1e-12)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


@given(
    st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.lists(st.floats(-99, 99), min_size=3, max_size=3)
)
def test_opengl_cameras_look_along_minus_z(
    tmp_path_factory: pytest.TempPathFactory, axis: list[float], centre: list[float]
) -> None:
    world_from_cam = np.eye(4)
    world_from_cam[:3, :3], world_from_cam[:3, 3] = rotation(axis), centre
    frame = {"file_path": "a.png", "transform_matrix": world_from_cam.tolist()}
    read = read_transforms(written(tmp_path_factory.mktemp("t"), frames=[frame])).frames[0].cam_from_world
    # OpenGL: a point 2 in front lies at z = -2, one above at y > 0; ours: z forward, y down.
    ahead = world_from_cam @ [0.5, 0.25, -2, 1]
    assert np.allclose(read @ ahead, [0.5, -0.25, 2, 1], atol=1e-9)
    back = np.linalg.inv(read) * [1.0, -1, -1, 1]
    assert np.abs(back - world_from_cam).max() < 1e-9


def test_frame_beats_top_level_and_size_comes_from_image(tmp_path: Path) -> None:
    frames = [
        {"file_path": "a", "transform_matrix": POSE},
        {"file_path": "b", "transform_matrix": POSE[:3], "fl_x": 50, "cx": 7, "w": 32, "h": 24},
    ]
    first, second = read_transforms(written(tmp_path, frames=frames, fl_y=90)).frames
    assert np.allclose(first.lens((1, 1)).K, [[100, 0, 32], [0, 90, 24], [0, 0, 1]])
    assert np.allclose(second.lens((1, 1)).K, [[50, 0, 7], [0, 90, 12], [0, 0, 1]])
    path = tmp_path / "blender.json"
    path.write_text(json.dumps({"camera_angle_x": math.pi / 2, "frames": frames[:1]}))
    lens = read_transforms(path).frames[0].lens((200, 100))
    assert np.allclose(lens.K, [[100, 0, 100], [0, 100, 50], [0, 0, 1]]) and not lens.distorted


@pytest.mark.parametrize(
    ("top", "model", "distorted"),
    [
        ({}, "OPENCV", False),
        ({"k1": 0, "p2": 0.0}, "OPENCV", False),
        ({"k1": 0.1, "p1": 0.01}, "OPENCV", True),
        ({"k1": 0.1, "k3": 0.01}, "FULL_OPENCV", True),
        ({"camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k4": 0.2}, "OPENCV_FISHEYE", True),
        ({"camera_model": "PINHOLE"}, "OPENCV", False),
    ],
)
def test_lenses(tmp_path: Path, top: dict[str, Any], model: str, distorted: bool) -> None:
    lens = read_transforms(written(tmp_path, **top)).frames[0].lens((64, 48))
    assert (lens.model, lens.distorted) == (model, distorted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1"),
        ("[]", "must be an object"),
        ("[" * 100_000, "not valid JSON"),
        (b"\xff\xfe\xfa", "not UTF-8|not valid JSON"),
        ('{"frames": 3}', "list `frames`"),
        ('{"frames": [3]}', r"frames\[0\]"),
        ('{"frames": [{"file_path": "a"}]}', r"frames\[0\]: `transform_matrix`"),
        (json.dumps({"frames": [{"file_path": 3, "transform_matrix": POSE}]}), "`file_path`"),
        (json.dumps({"frames": [{"file_path": "a", "transform_matrix": [[0] * 4] * 3}]}), "inverted"),
        (json.dumps({"w": 1e30, "frames": []}), "not an image size"),
        ('{"fl_x": 1e999, "frames": []}', "not finite"),
        ('{"fl_x": ' + "9" * 400 + ', "frames": []}', "not finite"),
        (json.dumps({"camera_model": "EQUIRECTANGULAR", "frames": [{"file_path": "a",
                     "transform_matrix": POSE}]}), "not supported"),
    ],
)  # fmt: skip
def test_broken_files(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "transforms.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FormatError, match=message) as caught:
        read_transforms(path)
    assert caught.value.path == path


def test_a_frame_without_focal_length_says_so(tmp_path: Path) -> None:
    frame = read_transforms(written(tmp_path, fl_x=None)).frames[0]
    with pytest.raises(FormatError, match=r"frames\[0\].*fl_x"):
        frame.lens((64, 48))
