"""Laws of the comparison of two clouds, and of adding up depth errors over views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.errors import InputError
from gbinet.evaluation.cloud import checked, compare_clouds, score_cloud, voxel_means
from gbinet.evaluation.depth import depth_errors
from gbinet.evaluation.depth_scene import DepthEvaluation, mean_errors

THRESHOLDS = (0.1, 0.5, 2.0)


def cloud(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), m=st.integers(1, 60))
def test_the_two_directions_swap(seed, n, m):
    a, b = cloud(seed, n), cloud(seed + 1, m)
    ab, ba = (score_cloud(compare_clouds(*pair), THRESHOLDS) for pair in ((a, b), (b, a)))
    assert ab.accuracy == ba.completeness and ab.completeness_median == ba.accuracy_median
    assert ab.overall == ba.overall and ab.precision == ba.recall and ab.fscore == ba.fscore


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), scale=st.floats(0.01, 100))
def test_scores_scale_with_the_scene(seed, n, scale):
    a, b = cloud(seed, n), cloud(seed + 1, 40)
    one = score_cloud(compare_clouds(a, b), THRESHOLDS)
    other = score_cloud(compare_clouds(a * scale + 7, b * scale + 7), [t * scale for t in THRESHOLDS])
    assert other.overall == pytest.approx(one.overall * scale, rel=1e-6)


def test_perfect_cloud_and_monotone_shares():
    a = cloud(0, 200)
    perfect = score_cloud(compare_clouds(a, a), THRESHOLDS)
    assert perfect.overall == 0 and set(perfect.fscore.values()) == {1.0}
    shares = list(score_cloud(compare_clouds(a, cloud(1, 200)), THRESHOLDS).fscore.values())
    assert 0 < shares[0] < shares[1] < shares[2]


def test_spheres_of_known_radii():
    """Points of two concentric spheres along the same rays: each is exactly the gap away, both ways."""
    rays = cloud(0, 3000)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    score = score_cloud(compare_clouds(rays * 10.25, rays * 10.0), (0.2, 0.3))
    assert score.accuracy == score.completeness == pytest.approx(0.25, abs=1e-12)
    assert score.fscore == {0.2: 0.0, 0.3: 1.0}


def test_thinning_takes_density_out_of_the_score():
    """A heap of points in one corner outweighs the rest, unless it is thinned."""
    x, y = np.meshgrid(np.arange(20.0), np.arange(20.0))
    truth = np.stack([x.ravel(), y.ravel(), 0 * x.ravel()], axis=1)
    heap = np.tile([0.0, 0, 0.4], (20_000, 1))
    dense = score_cloud(compare_clouds(np.concatenate([truth, heap]), truth), (1.0,))
    fair = score_cloud(compare_clouds(np.concatenate([truth, heap]), truth, thinning=0.2), (1.0,))
    assert dense.accuracy > 0.39 and fair.accuracy == pytest.approx(0.4 / 401)


def test_what_cannot_be_measured():
    with pytest.raises(InputError, match=r"\[N, 3\]"):
        checked(np.zeros((4, 2)), "cloud")
    with pytest.raises(InputError, match="too many voxels"):
        voxel_means(np.array([[0.0, 0, 0], [1e9, 0, 0]]), 0.01)
    with pytest.raises(InputError, match="positive"):
        voxel_means(np.zeros((1, 3)), 0)


# ---- depth over views -------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), views=st.integers(1, 4))
def test_views_add_up_to_the_figures_of_all_pixels(seed, views):
    rng = np.random.default_rng(seed)
    truth = torch.from_numpy(rng.uniform(1, 10, (views, 6, 7)) * (rng.random((views, 6, 7)) < 0.8)).float()
    noise = torch.from_numpy(rng.lognormal(-1, 2, truth.shape)).float()
    depth = (truth + noise) * torch.from_numpy(rng.random(truth.shape) < 0.7)
    evaluation = DepthEvaluation(THRESHOLDS)
    for k in range(views):
        evaluation.add(str(k), depth[k], truth[k], None)
    together, expected = evaluation.result().errors, depth_errors(depth, truth, None, THRESHOLDS)
    assert together.pixels == expected.pixels
    assert together.answered == pytest.approx(expected.answered)
    assert together.within == pytest.approx(expected.within)
    assert together.mean == pytest.approx(expected.mean, rel=1e-5)
    assert together.median == pytest.approx(expected.median, rel=3e-3, abs=1e-6)


def test_histogram_holds_all_answered_pixels():
    evaluation = DepthEvaluation((1.0,))
    truth = torch.full((10, 10), 5.0)
    evaluation.add("v", truth + torch.linspace(0.005, 0.995, 100).reshape(10, 10), truth, None)
    shares = evaluation.all.share_by_error(np.linspace(0, 1, 11))
    assert shares.sum() == pytest.approx(1) and np.allclose(shares, 0.1, atol=0.011)


def test_bad_thresholds():
    with pytest.raises(InputError, match="positive"):
        DepthEvaluation((0.0,))
    with pytest.raises(InputError, match="no scenes"):
        mean_errors([])
