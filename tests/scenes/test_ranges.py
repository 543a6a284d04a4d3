"""Depth ranges: laws, outliers, and rendered scenes whose points are few and have gaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_neighbours import look_at, ring, tracks

from gbinet.render.compose import make_scene
from gbinet.render.rig import draw_path
from gbinet.render.seeding import generator
from gbinet.render.shade import render_depth
from gbinet.render.sparse import sparse_points
from gbinet.scene import SparsePoints
from gbinet.scenes.ranges import range_from_depths, ranges_from_cameras, ranges_from_points


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=200), st.floats(0.01, 100))
def test_range_holds_nearly_all_depths_and_scales_with_them(depths: list[float], scale: float) -> None:
    values = torch.tensor(depths, dtype=torch.float64)
    found = range_from_depths(values)
    assert found is not None
    inside = ((values >= found.near) & (values <= found.far)).double().mean()
    assert inside >= 0.97
    scaled = range_from_depths(values * scale)
    assert scaled is not None
    assert (scaled.near, scaled.far) == pytest.approx((found.near * scale, found.far * scale), rel=1e-9)


def test_range_ignores_outliers_and_impossible_depths() -> None:
    good = torch.linspace(2, 4, 1000, dtype=torch.float64)
    bad = torch.tensor([-5.0, 0.0, math.nan, math.inf, 1e6, 1e-6], dtype=torch.float64)
    found = range_from_depths(torch.cat([good, bad]))
    assert found is not None and 1.0 < found.near < 2 and 4 < found.far < 5
    assert range_from_depths(bad[:4]) is None


def test_ranges_from_points_with_and_without_tracks() -> None:
    cameras = ring(3, 10.0)
    xyz = torch.rand(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    every = tracks([[0, 1, 2]] * 300)
    with_tracks = ranges_from_points(cameras, SparsePoints(xyz, None, every.view_index, every.track_start))
    without = ranges_from_points(cameras, SparsePoints(xyz))
    for a, b in zip(with_tracks, without, strict=True):
        assert a is not None and a == b and 1.5 < a.near < 3 and 5 < a.far < 20
    # A view that has no points in sight has no range.
    away = look_at(cameras[1].centre, cameras[1].centre * 2)
    assert ranges_from_points([*cameras[:2], away], tracks([[0, 1]] * 300))[2] is None


@given(st.floats(0.01, 1000))
def test_guess_from_cameras_holds_the_thing_they_look_at(radius: float) -> None:
    for found in ranges_from_cameras(ring(12, 15.0, radius)):
        assert found.near < 0.8 * radius and 1.25 * radius < found.far


def test_guess_from_cameras_side_by_side_or_alone() -> None:
    shift = torch.tensor([0.3, 0, 0], dtype=torch.float64)
    ahead = torch.tensor([0.0, 0, 5], dtype=torch.float64)
    row = [look_at(i * shift, i * shift + ahead) for i in range(5)]
    assert all(r.near < 3 < 10 < r.far for r in ranges_from_cameras(row))
    assert len(ranges_from_cameras(row[:1])) == 1
    assert len(ranges_from_cameras([row[0]] * 3)) == 3  # all in one place


@settings(max_examples=20)
@given(st.integers(30, 300), st.integers(0, 1000))
def test_a_few_wrong_points_do_not_take_the_range(count: int, seed: int) -> None:
    """One point in a hundred right before a camera, or far behind everything, changes little."""
    cameras = ring(3, 10.0)
    random = torch.Generator().manual_seed(seed)
    good = torch.rand(count, 3, generator=random, dtype=torch.float64) - 0.5
    wrong = cameras[0].centre * (
        0.999 - torch.rand(count // 100, 1, generator=random, dtype=torch.float64) * 1e-3
    )
    every = tracks([[0, 1, 2]] * (count + len(wrong)))
    clean = tracks([[0, 1, 2]] * count)
    found = ranges_from_points(
        cameras, SparsePoints(torch.cat([good, wrong]), None, every.view_index, every.track_start)
    )[0]
    expected = ranges_from_points(cameras, SparsePoints(good, None, clean.view_index, clean.track_start))[0]
    assert found is not None and expected is not None
    assert 0.8 * expected.near < found.near and found.far < 1.5 * expected.far


def test_points_that_only_neighbours_see_widen_a_range() -> None:
    """What stands in front of a view's own points is in its range when a neighbour found it."""
    cameras = ring(3, 10.0)
    behind = torch.rand(100, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.2
    before = behind + 0.6 * cameras[0].centre
    xyz = torch.cat([behind, before])
    seen = tracks([[0, 1, 2]] * 100 + [[1, 2]] * 100)
    found = ranges_from_points(cameras, SparsePoints(xyz, None, seen.view_index, seen.track_start))[0]
    _, depth = cameras[0].project(before)
    assert found is not None and found.near < float(depth.min())


@pytest.mark.parametrize(
    "kind", ["table", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("room", "facade", "terrain"))]
)
def test_few_points_with_gaps_still_give_ranges_that_hold_the_scene(kind: str) -> None:
    scene = make_scene(7, kind=kind)
    path = draw_path(generator(scene.seed, "path"), scene.kind, scene.layout, 6, 80, 60)
    cameras = [path[i] for i in range(6)]
    depths = [render_depth(scene, path[i : i + 1])[0][0] for i in range(6)]
    points = sparse_points(cameras, depths, 100, 0.4, np.random.default_rng(0))
    shares = []
    for depth, found in zip(depths, ranges_from_points(cameras, points), strict=True):
        assert found is not None
        known = depth[depth > 0]
        shares.append(float(((known >= found.near) & (known <= found.far)).double().mean()))
    assert np.mean(shares) >= 0.995
