"""Inputs and answer of the refiner in one pass each equal the plain code."""

import pytest
import torch

from gbinet.ops import refine

pytestmark = pytest.mark.usefixtures("fast")


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
        in_place = refine.inputs_plain(places, 4, sure, reference, inputs.shape[1])
    expected = refine.inputs_plain(places, 4, sure, reference, inputs.shape[1])
    assert torch.equal(in_place, expected) and in_place.stride() == expected.stride()
    torch.testing.assert_close(inputs, expected, rtol=0, atol=1e-5)
    expected_place, expected_logit = refine.mixed_plain(answer, places)
    torch.testing.assert_close(place, expected_place, rtol=0, atol=1e-3)
    assert logit is None if said == count + 1 else torch.equal(logit, expected_logit)
