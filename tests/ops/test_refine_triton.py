"""Input of the refiner's network and refined cells, in one pass each, equal the plain code."""

import pytest
import torch

from gbinet.ops import refine

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("count, outputs", [(4, 5), (6, 8)])
def test_input_and_output_of_the_refiner(count: int, outputs: int, kernel_device: torch.device) -> None:
    torch.manual_seed(count)
    candidates = 3000 + 5 * torch.randn(2, count, 5, 60, device=kernel_device)
    confidences = torch.rand(2, 2, 5, 60, device=kernel_device)
    reference = torch.randn(2, 8, 5, 60, device=kernel_device)
    output = torch.randn(2, outputs, 5, 60, device=kernel_device)
    with torch.no_grad():
        inputs = refine.inputs(candidates, 4, confidences, reference, aligned=True)
        cells, logit = refine.refined(output, candidates)
        in_place = refine.inputs_plain(candidates, 4, confidences, reference, inputs.shape[1])
    expected = refine.inputs_plain(candidates, 4, confidences, reference, inputs.shape[1])
    assert torch.equal(in_place, expected) and in_place.stride() == expected.stride()
    torch.testing.assert_close(inputs, expected, rtol=0, atol=1e-5)
    expected_cell, expected_logit = refine.refined_plain(output, candidates)
    torch.testing.assert_close(cells, expected_cell, rtol=0, atol=1e-3)
    assert logit is None if outputs == count + 1 else torch.equal(logit, expected_logit)
