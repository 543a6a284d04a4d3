"""Encoder and regulariser on fused kernels give what the plain ones give."""

import pytest
import torch

from gbinet import kernels
from gbinet.inference.fold import fold_batch_norms
from gbinet.inference.fused import FusedPyramid, FusedRegulariser
from gbinet.model.gbinet import GBiNet


def test_same_logits_at_an_odd_size(monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    plain = fold_batch_norms(GBiNet()).regularisers[3].to(kernel_device)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    volume = torch.randn(1, 4, 2, 9, 14).to(kernel_device)
    with torch.no_grad():
        expected = plain(volume)
        monkeypatch.setattr(kernels, "usable", lambda *tensors: True)  # the interpreter serves CPU tensors
        result = FusedRegulariser(plain)(volume)
    assert result.shape == expected.shape == (1, 2, 9, 14)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_same_features(monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device) -> None:
    torch.manual_seed(0)
    plain = fold_batch_norms(GBiNet()).encoder.to(kernel_device)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    images = torch.rand(1, 3, 16, 24).to(kernel_device)
    with torch.no_grad():
        expected = plain(images)
        monkeypatch.setattr(kernels, "usable", lambda *tensors: True)
        result = FusedPyramid(plain)(images)
    for own, reference in zip(result, expected, strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-3, atol=1e-3 * float(reference.abs().max()))
