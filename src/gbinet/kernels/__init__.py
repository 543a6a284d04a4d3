"""Fast twins of model functions, in Triton. Each file names its plain reference; a test compares the two."""

from __future__ import annotations

import functools
import importlib.util
import os

from torch import Tensor

TINY = 1e-30  # smallest sum of view weights: where no view is trusted at all the volume is zero, not NaN


@functools.cache
def _triton_found() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether the fast twins can serve these tensors. GBINET_KERNELS=plain switches them off."""
    return (
        all(t.is_cuda for t in tensors)
        and _triton_found()
        and os.environ.get("GBINET_KERNELS", "fast") != "plain"
    )
