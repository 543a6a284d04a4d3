"""Input of a chooser and the choice of parents, in one pass each, equal the plain code."""

import pytest
import torch

from gbinet.ops import parents

pytestmark = pytest.mark.usefixtures("fast")


def test_the_input_of_a_chooser_is_padded_with_zeros(kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    volume = torch.randn(2, 4, 3, 3, 50, device=kernel_device)
    views = torch.randn(2, 2, 3, 50, 8, device=kernel_device).permute(0, 1, 4, 2, 3)  # of all views
    cells = torch.randint(0, 20, (2, 3, 3, 50), device=kernel_device, dtype=torch.int32)
    expected = parents.inputs_plain(volume, views[:, 0], cells)
    with torch.no_grad():
        result = parents.inputs(volume, views[:, 0], cells)
    assert result.shape == (2, 24, 3, 50) and result.is_contiguous(memory_format=torch.channels_last)
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
