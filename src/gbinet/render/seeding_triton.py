"""Fast twin of gbinet.render.seeding.hash_uniform: the same numbers in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["count", "offset"])
def _hash_kernel(output, count, offset, BLOCK: tl.constexpr):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = (position + offset).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 16)) * 0x346CA68B
    x = x ^ (x >> 16)
    value = ((x >> 8).to(tl.float32) + 0.5) * (1 / (1 << 24))
    tl.store(output + position, value, mask=position < count)


def hash_uniform(count: int, offset: int, device: torch.device | str) -> Tensor:
    """[count] float32; offset: below 2^32."""
    output = torch.empty(count, device=device)
    signed = offset - (1 << 32) if offset >> 31 else offset  # the same 32 bits
    _hash_kernel[(triton.cdiv(count, 1024),)](output, count, signed, BLOCK=1024)
    return output
