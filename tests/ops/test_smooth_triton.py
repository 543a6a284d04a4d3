"""Smoothing in one pass equals the plain code."""

import pytest
import torch

from gbinet.ops.smooth import smoothed, smoothed_plain

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("radius", [1, 2, 5])
@pytest.mark.parametrize("reach", [6, 24])
def test_smooth(radius: int, reach: int, kernel_device: torch.device) -> None:
    torch.manual_seed(radius)
    values = 2000 + 10 * torch.randn(2, 19, 41, device=kernel_device)
    result = smoothed(values, radius, reach)
    torch.testing.assert_close(result, smoothed_plain(values, radius, reach), rtol=0, atol=2e-3)
