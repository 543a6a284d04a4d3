"""Smoothing: planes stay, noise goes, edges and outliers do not spread."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gbinet.errors import InputError
from gbinet.model.config import GBiNetConfig
from gbinet.ops.smooth import disc, smoothed


def plane(slope_y: float, slope_x: float, height: int = 17, width: int = 23) -> Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (100 + slope_y * y + slope_x * x)[None].float()


@given(st.integers(1, 5))
def test_a_disc_is_symmetric_and_as_wide_as_its_radius(radius: int) -> None:
    pixels = set(disc(radius))
    assert {(-y, -x) for y, x in pixels} == pixels == {(x, y) for y, x in pixels}
    assert (0, radius) in pixels and (radius, radius) not in pixels - {(1, 1)}


@given(st.floats(-3, 3), st.floats(-3, 3), st.integers(1, 5), st.floats(1, 30))
def test_a_plane_stays_a_plane_however_steep(dy: float, dx: float, radius: int, reach: float) -> None:
    values = plane(dy, dx)
    inner = (slice(None), slice(radius, -radius), slice(radius, -radius))
    torch.testing.assert_close(smoothed(values, radius, reach)[inner], values[inner], rtol=0, atol=1e-3)


@given(st.integers(0, 2**31), st.integers(1, 5), st.floats(0.5, 50))
def test_a_mean_stays_among_the_values_it_is_of(seed: int, radius: int, reach: float) -> None:
    values = 100 * torch.rand(2, 9, 12, generator=torch.Generator().manual_seed(seed))
    result = smoothed(values, radius, reach)
    assert bool((result >= values.amin((1, 2), keepdim=True) - 1e-3).all())
    assert bool((result <= values.amax((1, 2), keepdim=True) + 1e-3).all())
    assert bool(((result - values).abs() <= reach).all())


@pytest.mark.parametrize("radius, less", [(1, 2.2), (2, 3.5), (5, 7.0)])
def test_noise_falls_as_the_square_root_of_the_pixels(radius: int, less: float) -> None:
    noise = torch.randn(1, 200, 200, generator=torch.Generator().manual_seed(0))
    left = smoothed(plane(0.1, -0.2, 200, 200) + noise, radius, 24) - plane(0.1, -0.2, 200, 200)
    inner = left[:, radius:-radius, radius:-radius]
    assert float(noise.std() / inner.std()) > less  # of 9, 21 and 97 pixels: 3, 4.6 and 9.8 at best


def test_the_other_side_of_an_edge_and_outliers_do_not_count() -> None:
    values = plane(0, 0)
    values[..., 12:] += 24  # as far as the reach: no weight
    values[0, 8, 4] += 1000
    assert torch.equal(smoothed(values, 5, 24), values)


def test_configurations_that_cannot_smooth_are_refused() -> None:
    with pytest.raises(InputError, match="two numbers per scale"):
        GBiNetConfig(smoothing=((1, 6), (1, 6)))
    with pytest.raises(InputError, match=r"0\.\.16"):
        GBiNetConfig(smoothing=((1, 6), (1, 6), (2, 6), (500, 6)))
    with pytest.raises(InputError, match="cells be at least 1"):
        GBiNetConfig(smoothing=((1, 6), (1, 6), (2, 6), (5, 0)))
    with pytest.raises(InputError, match="needs smoothing"):
        GBiNetConfig(readout="smooth")
