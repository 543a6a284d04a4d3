"""The maps between two stages: one pass equals the plain code."""

import pytest
import torch

from gbinet.ops.beside import beside
from gbinet.ops.enlarge import doubled, doubled_plain
from gbinet.ops.smooth import smoothed, smoothed_plain

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("radius", [1, 2, 5])
@pytest.mark.parametrize("reach", [6, 24])
def test_smooth(radius: int, reach: int, kernel_device: torch.device) -> None:
    torch.manual_seed(radius)
    values = 2000 + 10 * torch.randn(2, 19, 41, device=kernel_device)
    result = smoothed(values, radius, reach)
    torch.testing.assert_close(result, smoothed_plain(values, radius, reach), rtol=0, atol=2e-3)


@pytest.mark.parametrize("size", [(5, 7), (1, 1), (16, 33)])
@pytest.mark.parametrize("edge", [1, 6, 1000])
def test_double(size: tuple[int, int], edge: int, kernel_device: torch.device) -> None:
    torch.manual_seed(edge)
    cells = torch.randint(0, 40, (2, *size), dtype=torch.int32, device=kernel_device)
    result = doubled(cells, edge)
    assert result.dtype == torch.int32
    assert torch.equal(result, doubled_plain(cells, edge))


def test_maps_beside_each_other_are_filled_up_with_zeros(kernel_device: torch.device) -> None:
    maps = [torch.randn(2, channels, 3, 5, device=kernel_device) for channels in (6, 4, 1)]
    with torch.no_grad():
        result = beside(*maps)
    assert result.shape == (2, 16, 3, 5) and result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result[:, :11], torch.cat(maps, dim=1)) and not result[:, 11:].any()
    assert torch.equal(beside(*maps), torch.cat(maps, dim=1))  # with gradients
