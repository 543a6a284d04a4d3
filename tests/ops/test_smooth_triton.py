"""The maps between two stages: one pass equals the plain code."""

import pytest
import torch

from gbinet.ops import parents, refine
from gbinet.ops.ends import nearest_and_farthest, nearest_and_farthest_plain
from gbinet.ops.enlarge import doubled, doubled_plain
from gbinet.ops.normalise import normalised
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


@pytest.mark.parametrize("reach, factor", [(1, 2), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_ends(reach: int, factor: int, dtype: torch.dtype, kernel_device: torch.device) -> None:
    torch.manual_seed(reach)
    values = torch.randint(0, 4000, (2, 6, 9), device=kernel_device).to(dtype)
    size = (6 * factor, 9 * factor)
    result = nearest_and_farthest(values, reach, size)
    assert result.dtype == dtype and torch.equal(result, nearest_and_farthest_plain(values, reach, size))


def test_what_a_chooser_looks_at_is_filled_up_with_zeros(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    volume = torch.randn(2, 4, 3, 3, 5, device=kernel_device)
    views = torch.randn(2, 2, 3, 5, 8, device=kernel_device).permute(0, 1, 4, 2, 3)  # of all views
    cells = torch.randint(0, 20, (2, 3, 3, 5), device=kernel_device, dtype=torch.int32)
    expected = parents.inputs_plain(volume, views[:, 0], cells)
    with torch.no_grad():
        result = parents.inputs(volume, views[:, 0], cells)
    assert result.shape == (2, 24, 3, 5) and result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result[:, :22], expected)
    assert not result[:, 22:].any()
    assert torch.equal(parents.inputs(volume, views[:, 0], cells), expected)  # with gradients


def test_chosen_parents(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    cells = torch.randint(0, 4, (2, 3, 7, 50), device=kernel_device, dtype=torch.int32)
    logits = torch.randn(2, 3, 7, 50, device=kernel_device).round()  # some are equal
    cell, confidence = parents.chosen(cells, logits)
    expected_cell, expected = parents.chosen_plain(cells, logits)
    assert torch.equal(cell, expected_cell)
    torch.testing.assert_close(confidence, expected)


@pytest.mark.parametrize("count, said", [(4, 5), (6, 8)])
def test_around_the_refiner(count: int, said: int, kernel_device: torch.device) -> None:
    torch.manual_seed(count)
    places = 3000 + 5 * torch.randn(2, count, 5, 60, device=kernel_device)
    sure = torch.rand(2, 2, 5, 60, device=kernel_device)
    reference = torch.randn(2, 8, 5, 60, device=kernel_device)
    answer = torch.randn(2, said, 5, 60, device=kernel_device)
    with torch.no_grad():
        inputs = refine.inputs(places, 4, sure, reference, aligned=True)
        place, logit = refine.mixed(answer, places)
    expected = refine.inputs_plain(places, 4, sure, reference, inputs.shape[1])
    torch.testing.assert_close(inputs, expected, rtol=0, atol=1e-5)
    expected_place, expected_logit = refine.mixed_plain(answer, places)
    torch.testing.assert_close(place, expected_place, rtol=0, atol=1e-3)
    assert logit is None if said == count + 1 else torch.equal(logit, expected_logit)


@pytest.mark.parametrize("size", [(16, 24), (13, 21)])
def test_normalised_images(size: tuple[int, int], kernel_device: torch.device) -> None:
    views = torch.rand(2, 3, 3, *size, device=kernel_device)
    result = normalised(views[:, 1], torch.float16, 8, packed=True)
    expected = normalised(views[:, 1], torch.float16, 8, packed=False)
    assert result.shape == (2, 4, 16, 24) and result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result[:, :3], expected, rtol=0, atol=1e-3)
    assert not result[:, 3].any()
