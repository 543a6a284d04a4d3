"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture
def kernel_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
