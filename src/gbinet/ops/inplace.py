"""Sums in place, where no gradient needs the terms."""

from __future__ import annotations

from torch import Tensor


def add_into(target: Tensor, other: Tensor) -> Tensor:
    """target + other, in place when no gradient needs target."""
    return target + other if target.requires_grad else target.add_(other)
