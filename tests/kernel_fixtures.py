"""Kernels in tests. Without a GPU they run in Triton's interpreter, chosen before Triton is imported.

Tests of kernels need little: pytest, torch and Triton. Those of `tests/ops/*_triton.py` run as they are on a
machine with a GPU and nothing else (`--confcutdir tests/ops`).
"""

from __future__ import annotations

import os

import pytest
import torch

from gbinet import ops

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def kernel_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    pytest.importorskip("triton", reason="Triton is not installed")
    # Plain references must be exact: cuDNN's default would round their float32 inputs to 10 bits.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def fast(kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations choose their kernels, on CPU tensors too: the interpreter serves these."""
    monkeypatch.setattr(ops, "usable", lambda *tensors: True)


def relative_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference, as a share of the largest value of b."""
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))
