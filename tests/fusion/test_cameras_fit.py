"""Depth maps tell whether the cameras they belong to fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker, true_depth
from PIL import Image

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.fusion.cameras_fit import CamerasFit, cameras_fit
from gbinet.scene import Scene


class Maps:
    """True depth of the right scene, with the cameras that are thought to be right."""

    def __init__(self, right: Scene, thought: Scene, confidence: float | None = 0.9) -> None:
        self.right, self.thought, self.confidence = right, thought, confidence

    def load(self, index: int) -> DepthMap:
        depth = true_depth(self.right.views[index].camera)
        said = None if self.confidence is None else torch.full_like(depth, self.confidence)
        return DepthMap(depth, self.thought.views[index].camera, said)


def moved(scene: Scene, by: float) -> Scene:
    """Every other camera stands this much further back."""
    views = list(scene.views)
    for index in range(1, len(views), 2):
        pose = views[index].camera.cam_from_world.clone()
        pose[2, 3] += by
        views[index] = replace(views[index], camera=replace(views[index].camera, cam_from_world=pose))
    return replace(scene, views=tuple(views))


def test_right_cameras_miss_by_next_to_nothing_and_others_by_what_they_are_off(
    ball_scene: SceneMaker,
) -> None:
    scene = ball_scene(views=2, width=128, height=96)
    thought = [moved(scene, by) for by in (0.0, 0.02, 0.04)]
    found = [cameras_fit(cameras, Maps(scene, cameras)) for cameras in thought]
    none, half, whole = (fit for fit in found if fit is not None)
    assert none.miss < 0.02 and half.miss > 0.05
    assert whole.miss == pytest.approx(2 * half.miss, rel=0.05)
    assert none.share > 0.85 and none.size == 128 and not none.off  # the rest is hidden from the other view


def test_cameras_that_are_far_off_are_told_by_what_does_not_meet(ball_scene: SceneMaker) -> None:
    """What still meets is only what misses by little."""
    scene = ball_scene(views=2, width=128, height=96)
    wrong = moved(scene, 0.5)
    fit = cameras_fit(wrong, Maps(scene, wrong))
    assert fit is not None and fit.apart and fit.off


@pytest.mark.parametrize(
    ("share", "miss", "size", "off"),
    [
        (0.9, 0.2, 640, False),
        (0.9, 0.4, 640, True),
        (0.9, 0.4, 1600, False),  # the same angle is more pixels in larger maps
        (0.9, 1.0, 1600, True),
        (0.9, 0.2, 320, False),  # but no map is exact to a small part of a pixel
        (0.4, 0.1, 640, True),
        (0.0, float("nan"), 640, True),
    ],
)
def test_the_limit_follows_the_size(share: float, miss: float, size: int, off: bool) -> None:
    assert CamerasFit(share, miss, size).off == off


@pytest.mark.parametrize("confidence", [None, 0.6])
def test_without_confident_pixels_there_is_no_verdict(
    ball_scene: SceneMaker, confidence: float | None
) -> None:
    scene = ball_scene(width=128, height=96)
    assert cameras_fit(scene, Maps(scene, scene, confidence)) is None


def test_few_pixels_and_lone_views_do_not_judge(ball_scene: SceneMaker) -> None:
    small = ball_scene(width=24, height=18)
    assert cameras_fit(small, Maps(small, small)) is None
    alone = replace(small, views=tuple(replace(view, sources=()) for view in small.views))
    assert cameras_fit(alone, Maps(alone, alone)) is None


class Trellis:
    """Upright bars in three layers before a wall, as cameras beside each other see them."""

    def load(self, index: int) -> DepthMap:
        K = torch.tensor([[640.0, 0, 320], [0, 640, 24], [0, 0, 1]], dtype=torch.float64)
        pose = torch.eye(4, dtype=torch.float64)
        pose[0, 3] = -0.5 * index
        camera = Camera(K, pose, 640, 48)
        along = (camera.pixel_grid()[..., 0] - 320) / 640  # x / z of each pixel's ray
        depth = torch.full((48, 640), 6.0)
        for layer, width in ((4.5, 0.31), (3.5, 0.23), (2.5, 0.17)):
            bar = ((0.5 * index + along * layer) / width).remainder(1) < 0.38
            depth = torch.where(bar, layer, depth)
        return DepthMap(depth, camera, torch.full_like(depth, 0.9))


def test_what_hides_a_surface_says_nothing_about_cameras(ball_scene: SceneMaker) -> None:
    fit = cameras_fit(ball_scene(views=2), Trellis())
    assert fit is not None and fit.share > 0.95 and not fit.off


class Turning(Maps):
    """The right half of every photo does not move with the rest."""

    def load(self, index: int) -> DepthMap:
        found = super().load(index)
        depth = found.depth.clone()
        depth[:, depth.shape[1] // 2 :] *= 1 + 0.1 * index
        return replace(found, depth=depth)


def test_masks_are_minded(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2, width=128, height=96)
    whole = cameras_fit(scene, Turning(scene, scene))
    assert whole is not None and whole.off
    Image.fromarray(np.uint8([[255] * 60 + [0] * 68] * 96)).save(tmp_path / "mask.png")
    views = tuple(replace(view, mask_path=tmp_path / "mask.png") for view in scene.views)
    masked = cameras_fit(replace(scene, views=views), Turning(scene, scene))
    assert masked is not None and not masked.off
    (tmp_path / "mask.png").write_bytes(b"broken")
    assert cameras_fit(replace(scene, views=views), Turning(scene, scene)) is None
