"""Normalised images in one pass equal the plain code."""

import pytest
import torch

from gbinet.ops.normalise import normalised

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("size", [(16, 24), (13, 21)])
def test_normalised_images(size: tuple[int, int], kernel_device: torch.device) -> None:
    views = torch.rand(2, 3, 3, *size, device=kernel_device)
    result = normalised(views[:, 1], torch.float16, 8, packed=True)
    expected = normalised(views[:, 1], torch.float16, 8, packed=False)
    assert result.shape == (2, 4, 16, 24) and result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result[:, :3], expected, rtol=0, atol=1e-3)
    assert not result[:, 3].any()
