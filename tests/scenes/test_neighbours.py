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
from gbinet.scenes.neighbours import coverage, rank_by_geometry, rank_by_tracks


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


def slow_scores(
    cameras: list[Camera], points: SparsePoints, seen_by: list[list[int]]
) -> dict[tuple[int, int], float]:
    """MVSNet's double loop, as written in its paper's code, times the value of the scale."""
    scores: dict[tuple[int, int], float] = {}
    for point, views in zip(points.xyz, seen_by, strict=True):
        for a in set(views):
            for b in set(views) - {a}:
                first, second = cameras[a].centre - point, cameras[b].centre - point
                cosine = float(first @ second / first.norm() / second.norm())
                angle = math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
                sigma = 1.0 if angle <= 5 else 10.0
                value = math.exp(-((angle - 5) ** 2) / (2 * sigma**2))
                value *= math.exp(
                    -(math.log2(float(first.norm() / second.norm())) ** 2) / 2
                )  # one focal length
                scores[a, b] = scores.get((a, b), 0.0) + value
    return scores


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 5), max_size=7), min_size=1, max_size=30), st.integers(0, 5))
def test_ranking_by_tracks_equals_the_double_loop(seen_by: list[list[int]], seed: int) -> None:
    cameras = ring(6, 3.0)
    points = tracks(seen_by, seed)
    expected = slow_scores(cameras, points, seen_by)
    ranked = rank_by_tracks(cameras, points, max_sources=5)
    for view, sources in enumerate(ranked):
        found = {source.index: source.score for source in sources}
        assert view not in found
        assert found == pytest.approx({b: s for (a, b), s in expected.items() if a == view and s > 0})
        assert [s.score for s in sources] == sorted((s.score for s in sources), reverse=True)


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


def test_ranking_by_tracks_without_a_table_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(1)
    points = SparsePoints(
        torch.randn(400, 3, dtype=torch.float64, generator=random),
        view_index=torch.randint(0, 12, (2000,), generator=random),
        track_start=torch.arange(0, 2001, 5),
    )
    cameras = ring(12, 9.0)
    whole = rank_by_tracks(cameras, points, 5)
    monkeypatch.setattr("gbinet.scenes.neighbours._MAX_TABLE", 0)
    monkeypatch.setattr("gbinet.scenes.neighbours._PAIRS_AT_ONCE", 500)
    parts = rank_by_tracks(cameras, points, 5)
    assert [[s.index for s in row] for row in parts] == [[s.index for s in row] for row in whole]
    for one, other in zip(whole, parts, strict=True):
        assert [s.score for s in one] == pytest.approx([s.score for s in other], rel=1e-12)
