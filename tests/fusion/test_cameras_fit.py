"""Depth maps tell whether the cameras they belong to fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ball_scene import SceneMaker, true_depth

from gbinet.depthmap import DepthMap
from gbinet.fusion.cameras_fit import median_miss
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
    found = [median_miss(cameras, Maps(scene, cameras)) for cameras in thought]
    none, half, whole = (value for value in found if value is not None)
    assert none < 0.02 and half > 0.05
    assert whole == pytest.approx(2 * half, rel=0.05)


@pytest.mark.parametrize("confidence", [None, 0.3])
def test_nothing_is_said_where_nobody_is_sure(ball_scene: SceneMaker, confidence: float | None) -> None:
    scene = ball_scene(width=128, height=96)
    assert median_miss(scene, Maps(scene, scene, confidence)) is None


def test_few_pixels_and_lone_views_do_not_judge(ball_scene: SceneMaker) -> None:
    small = ball_scene(width=24, height=18)
    assert median_miss(small, Maps(small, small)) is None
    alone = replace(small, views=tuple(replace(view, sources=()) for view in small.views))
    assert median_miss(alone, Maps(alone, alone)) is None
