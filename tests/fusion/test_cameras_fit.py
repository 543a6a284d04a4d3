"""Depth maps tell whether the cameras they belong to fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ball_scene import SceneMaker, true_depth

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
