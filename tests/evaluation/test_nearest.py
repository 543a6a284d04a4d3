"""Neighbour search equals brute force; thinning equals the plain greedy loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.evaluation import grid, nearest
from gbinet.evaluation.nearest import GridNeighbours, TreeNeighbours, nearest_distances, thin

SEARCHES = [TreeNeighbours, lambda points: GridNeighbours(points, "cpu")]


def cloud(seed: int, count: int, scale: float = 1.0, flat: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    points = rng.normal(0, scale, (count, 3))
    if flat:
        points[:, 2] = 0
    return points


def all_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.norm(a[:, None].astype(float) - b[None].astype(float), axis=-1)


@pytest.mark.parametrize("search", SEARCHES)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 80),
    queries=st.integers(0, 50),
    offset=st.sampled_from([0.0, 5.0, 1e4]),
    limit=st.sampled_from([0.3, 2.0, np.inf]),
    flat=st.booleans(),
)
def test_nearest_is_brute_force(search, seed, count, queries, offset, limit, flat):
    target, query = cloud(seed, count, flat=flat), cloud(seed + 1, queries) + offset
    distance, index = search(target).nearest(query, limit)
    table = all_distances(query, target)
    expected = table.min(axis=1, initial=np.inf)
    within = expected <= limit
    assert np.allclose(distance[within], expected[within], rtol=0, atol=1e-9)
    assert np.isinf(distance[~within]).all() and (index[~within] == -1).all()
    rows = np.flatnonzero(within)
    assert np.allclose(table[rows, index[rows]], expected[rows], rtol=0, atol=1e-9)


@pytest.mark.parametrize("search", SEARCHES)
def test_limit_is_inclusive(search):
    target = np.array([[0.0, 0, 0]])
    distance, _ = search(target).nearest(np.array([[0.5, 0, 0], [0.500001, 0, 0]]), 0.5)
    assert distance[0] == 0.5 and np.isinf(distance[1])


def test_all_points_in_one_place():
    target = np.ones((20, 3))
    distance, _ = GridNeighbours(target, "cpu").nearest(np.array([[1.0, 1, 1], [1, 1, 4]]), np.inf)
    assert distance.tolist() == [0.0, 3.0]


def test_small_pieces_give_the_same(monkeypatch):
    target, query = cloud(0, 500, flat=True), cloud(1, 300)
    whole = GridNeighbours(target, "cpu").nearest(query, np.inf)[0]
    monkeypatch.setattr(grid, "_CANDIDATES", 50)
    monkeypatch.setattr(nearest, "_CHUNK", 7)
    assert np.array_equal(GridNeighbours(target, "cpu").nearest(query, np.inf)[0], whole)
    assert np.allclose(nearest_distances(query, target), whole, rtol=0, atol=1e-12)


def greedy_loop(points: np.ndarray, radius: float, order: np.ndarray) -> set[int]:
    alive = np.ones(len(points), dtype=bool)
    kept = set()
    for i in order:
        if alive[i]:
            alive[np.linalg.norm(points - points[i], axis=1) <= radius] = False
            kept.add(int(i))
    return kept


@pytest.mark.parametrize("by_grid", [False, True])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(0, 300), radius=st.sampled_from([0.02, 0.2, 1.0, 50.0]))
def test_thinning_is_the_greedy_loop(by_grid, seed, count, radius):
    points = cloud(seed, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "_FIRST_BATCH", 16)  # several batches even here
        if by_grid:
            patch.setattr(nearest.importlib.util, "find_spec", lambda name: None)
        kept = thin(points, radius, seed=seed)
    order = np.random.default_rng(seed).permutation(count)
    assert set(kept.tolist()) == greedy_loop(points, radius, order)
    assert len(set(kept.tolist())) == len(kept)


def test_thinning_law_at_size():
    """No two kept points within the radius; every dropped one within the radius of a kept one."""
    rng = np.random.default_rng(3)
    points = rng.uniform(0, 20, (100_000, 3)).astype(np.float32)
    points[:, 2] = rng.normal(0, 0.05, len(points))
    kept = thin(points, 0.2, seed=1)
    assert 0 < len(kept) < len(points) / 4
    assert len(TreeNeighbours(points[kept]).pairs(0.2)) == 0
    assert nearest_distances(points, points[kept]).max() <= 0.2


def test_thinning_a_cloud_in_the_wrong_unit_is_cheap():
    """Metres taken for millimetres: all points lie within the radius, one stays."""
    points = np.random.default_rng(0).uniform(0, 1e-3, (200_000, 3))
    assert len(thin(points, 0.2)) == 1


def test_order_depends_on_the_seed():
    points = cloud(0, 500)
    assert set(thin(points, 0.5, seed=1)) == set(thin(points, 0.5, seed=1)) != set(thin(points, 0.5, seed=2))


def test_bad_input():
    with pytest.raises(InputError, match="without points"):
        nearest_distances(np.zeros((3, 3)), np.zeros((0, 3)))
    with pytest.raises(InputError, match="positive"):
        thin(np.zeros((3, 3)), 0.0)


@pytest.mark.gpu
def test_gpu_equals_cpu():
    target, query = cloud(0, 20_000, flat=True), cloud(1, 5_000, scale=2.0)
    on_cpu = nearest_distances(query, target)
    assert np.allclose(nearest_distances(query, target, device="cuda"), on_cpu, rtol=0, atol=1e-9)
    assert torch.cuda.is_available()
    assert set(thin(target, 0.05, device="cuda")) == set(thin(target, 0.05))
