"""The maps of `gbinet info` are not mirrored and not upside down."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gbinet.camera import Camera
from gbinet.formats.image import write_image
from gbinet.scene import DepthRange, Scene, SourceView, SparsePoints, View
from gbinet.viewer.overview import _axes, draw_overview


def row_of_cameras(folder: Path, count: int = 3) -> Scene:
    K = torch.tensor([[40.0, 0, 20], [0, 40, 15], [0, 0, 1]], dtype=torch.float64)
    views = []
    for index in range(count):
        pose = torch.eye(4, dtype=torch.float64)
        pose[0, 3] = -0.5 * index  # along x, looking along z
        image = write_image(folder / f"{index}.png", np.full((30, 40, 3), 90, np.uint8))
        others = tuple(SourceView(i, 1.0) for i in range(count) if i != index)
        views.append(View(str(index), Camera(K, pose, 40, 30), image, DepthRange(2, 6), others))
    xyz = torch.tensor([[0.0, 0, 4], [1, 0.5, 5]], dtype=torch.float64)
    seen = torch.arange(count).repeat(2)
    points = SparsePoints(xyz, None, seen, torch.tensor([0, count, 2 * count]))
    return Scene("row", "test", folder, tuple(views), points)


def test_axes_are_as_a_person_behind_the_cameras_sees_them(tmp_path: Path) -> None:
    right, up, away = _axes(row_of_cameras(tmp_path))
    assert np.allclose([right, up, away], [[1, 0, 0], [0, -1, 0], [0, 0, 1]])


def test_scenes_of_every_kind_can_be_drawn(tmp_path: Path) -> None:
    scene = row_of_cameras(tmp_path)
    single = row_of_cameras(tmp_path, 1)
    (tmp_path / "2.png").write_bytes(b"broken")
    for some in (scene, single, Scene("bare", "test", tmp_path, scene.views)):
        picture = draw_overview(some)
        assert picture.shape[1:] == (1600, 3) and picture.std() > 5
