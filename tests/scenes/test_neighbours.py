"""Ranking of source views and depth ranges: laws, and the obvious slow twin."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.scene import DepthRange, SourceView, SparsePoints, View
from gbinet.scenes.nearest import nearest
from gbinet.scenes.neighbours import (
    coverage,
    rank_by_geometry,
    rank_by_tracks,
)


def look_at(centre: torch.Tensor, target: torch.Tensor, width: int = 200, height: int = 150) -> Camera:
    forward = torch.nn.functional.normalize(target - centre, dim=0)
    up = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    right = torch.nn.functional.normalize(torch.linalg.cross(up, forward), dim=0)
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = torch.stack([right, torch.linalg.cross(forward, right), forward])
    pose[:3, 3] = -pose[:3, :3] @ centre
    K = torch.tensor([[180.0, 0, width / 2], [0, 180, height / 2], [0, 0, 1]], dtype=torch.float64)
    return Camera(K, pose, width, height)


def ring(count: int, degrees: float, radius: float = 4.0) -> list[Camera]:
    """Cameras on an arc around the origin, `degrees` apart, all looking at it."""
    angles = [math.radians(degrees * i) for i in range(count)]
    centres = [torch.tensor([radius * math.sin(a), 0.0, -radius * math.cos(a)]).double() for a in angles]
    return [look_at(centre, torch.zeros(3, dtype=torch.float64)) for centre in centres]


def tracks(seen_by: list[list[int]], seed: int = 0) -> SparsePoints:
    generator = torch.Generator().manual_seed(seed)
    xyz = torch.randn(len(seen_by), 3, generator=generator, dtype=torch.float64) * 0.5
    starts = [0]
    for views in seen_by:
        starts.append(starts[-1] + len(views))
    flat = [v for views in seen_by for v in views]
    return SparsePoints(
        xyz, None, torch.tensor(flat, dtype=torch.int64), torch.tensor(starts, dtype=torch.int64)
    )


def slow_ranking(
    cameras: list[Camera], points: SparsePoints, seen_by: list[list[int]], view: int
) -> list[tuple[int, float]]:
    """Point by point and camera by camera: the best source beside those before it, with its whole score."""
    worth: dict[int, dict[int, float]] = {}  # other view -> point -> value
    for number, (point, views) in enumerate(zip(points.xyz, seen_by, strict=True)):
        for other in set(views) - {view} if view in views else ():
            first, second = cameras[view].centre - point, cameras[other].centre - point
            cosine = float(first @ second / first.norm() / second.norm())
            angle = math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
            value = math.exp(-((angle - 5) ** 2) / (2 * (1.0 if angle <= 5 else 10.0) ** 2))
            ratio = math.log2(float(first.norm() / second.norm()))  # one focal length
            worth.setdefault(other, {})[number] = value * math.exp(-(ratio**2) / 2)
    left, ranked = [1.0] * len(seen_by), []
    while worth:
        gains = {o: sum(left[p] * v for p, v in values.items()) for o, values in worth.items()}
        best = max(sorted(gains), key=lambda o: round(gains[o], 12))
        chosen = worth.pop(best)
        ranked.append((best, sum(chosen.values())))
        for p, v in chosen.items():
            left[p] *= 0.1**v
    return ranked


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 5), max_size=7), min_size=1, max_size=30), st.integers(0, 5))
def test_ranking_by_tracks_equals_the_loops(seen_by: list[list[int]], seed: int) -> None:
    cameras = ring(6, 3.0)
    points = tracks(seen_by, seed)
    ranked = rank_by_tracks(cameras, points, max_sources=5)
    for view, sources in enumerate(ranked):
        expected = slow_ranking(cameras, points, seen_by, view)
        assert [s.index for s in sources] == [index for index, _ in expected]
        assert [s.score for s in sources] == pytest.approx([score for _, score in expected])


def test_sources_do_not_all_look_at_the_same_part() -> None:
    """Three neighbours alike see the left half of a view, one at a worse angle sees the rest."""
    near = ring(2, 5.0)
    cameras = [near[0], near[1], near[1], near[1], ring(2, -14.0)[1]]
    sources = rank_by_tracks(cameras, tracks([[0, 1, 2, 3]] * 30 + [[0, 4]] * 10))[0]
    assert sources[1].index == 4 and {s.index for s in sources} == {1, 2, 3, 4}
    assert sources[1].score < sources[2].score  # scores are those of pairs


def test_a_view_with_very_many_points_is_ranked_by_some(monkeypatch: pytest.MonkeyPatch) -> None:
    cameras, points = ring(5, 4.0), tracks([[0, 1, 2, 3, 4]] * 4000)
    monkeypatch.setattr("gbinet.scenes.neighbours._POINTS", 4000)
    whole = rank_by_tracks(cameras, points)[0]
    monkeypatch.setattr("gbinet.scenes.neighbours._POINTS", 500)
    some = rank_by_tracks(cameras, points)[0]
    assert [s.index for s in some] == [s.index for s in whole]
    assert some[0].score == pytest.approx(whole[0].score / 8, rel=0.02)


def test_ranking_by_tracks_needs_tracks() -> None:
    with pytest.raises(InputError, match="observe"):
        rank_by_tracks(ring(2, 5), SparsePoints(torch.zeros(1, 3)))


def test_ranking_by_geometry_prefers_five_degrees() -> None:
    cameras = ring(20, 1.0)
    ranges = [DepthRange(3.0, 5.0)] * 20
    sources = rank_by_geometry(cameras, ranges, max_sources=4)[10]
    # 5 degrees at the middle depth; the far points see less, so slightly more is best over all.
    assert {abs(s.index - 10) for s in sources[:2]} <= {5, 6, 7}
    assert 10 not in {s.index for s in sources}


def test_ranking_by_geometry_leaves_out_cameras_that_look_away() -> None:
    cameras = ring(3, 5.0)
    away = look_at(cameras[1].centre, cameras[1].centre * 2)
    ranked = rank_by_geometry([*cameras, away], [DepthRange(3.0, 5.0)] * 4)
    assert all(3 not in {s.index for s in sources} for sources in ranked[:3])
    assert ranked[3] == ()


def test_coverage_is_the_share_that_two_sources_see() -> None:
    cameras = ring(3, 5.0)
    cameras.append(look_at(cameras[1].centre, cameras[1].centre * 2))  # looks away
    sources = [(1, 2), (0, 2), (0, 1), (0, 1)]
    views = [
        View(str(i), c, Path(), DepthRange(3.9, 4.1), tuple(SourceView(s, 1.0) for s in sources[i]))
        for i, c in enumerate(cameras)
    ]
    shares = coverage(views)
    assert all(share > 0.8 for share in shares[:3])  # 5 degrees apart they see nearly the same
    assert shares[3] == 0.0
    one = replace(views[0], sources=views[0].sources[:1])
    assert coverage([one, *views[1:]])[0] == 0.0  # one source is not two


@pytest.mark.parametrize("by", ["tracks", "geometry"])
def test_a_neighbour_at_the_same_scale_is_worth_more(by: str) -> None:
    """Two neighbours at the same angle: one as far away, one at three times the distance."""
    near = ring(3, 6.0)
    far = ring(3, -6.0, 12.0)[1]
    cameras = [near[0], near[1], far]
    if by == "tracks":
        ranked = rank_by_tracks(cameras, tracks([[0, 1, 2]] * 50))
    else:
        ranked = rank_by_geometry(
            cameras, [DepthRange(3.5, 4.5), DepthRange(3.5, 4.5), DepthRange(11.5, 12.5)]
        )
    scores = {source.index: source.score for source in ranked[0]}
    assert scores[1] > 2 * scores[2] > 0


def test_a_longer_lens_makes_up_for_distance() -> None:
    near, far = ring(3, 6.0), ring(3, -6.0, 12.0)[1]
    K = far.K.clone()
    K[:2, :2] *= 3
    short, long = (
        rank_by_tracks([near[0], near[1], camera], tracks([[0, 1, 2]] * 50))[0][-1].score
        for camera in (far, replace(far, K=K))
    )
    assert long == pytest.approx(short * math.exp(math.log2(3) ** 2 / 2), rel=0.1)


def test_nearest_is_a_table_of_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.rand(300, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points[:100] *= 0.01  # crowded and empty boxes
    table = torch.cdist(points, points).fill_diagonal_(torch.inf).topk(7, largest=False)
    monkeypatch.setattr("gbinet.scenes.nearest._LEAF", 16)
    distances, indices = nearest(points, 7)
    assert torch.equal(indices, table.indices)
    assert torch.allclose(distances, table.values)
