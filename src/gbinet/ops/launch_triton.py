"""What launches of kernels share: the sizes of matrix products, and how precise they are."""

from __future__ import annotations

import torch
import triton


def dot_size(count: int) -> int:
    """Rows or columns that a matrix product takes for so many: a power of two, 16 at least."""
    return max(16, int(triton.next_power_of_2(count)))


def dot_precision(dtype: torch.dtype) -> str:
    """Of products of this type: full for float32. The others have one precision and ignore this."""
    return "ieee" if dtype == torch.float32 else "tf32"
