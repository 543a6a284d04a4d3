"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton", reason="Triton is not installed")


# The plain twins must be exact references: cuDNN's default would round their float32 inputs to 10 bits.
torch.backends.cudnn.allow_tf32 = False


@pytest.fixture
def kernel_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
