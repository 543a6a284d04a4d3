"""The map from the network's confidence to the measured share of right pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from gbinet.errors import InputError

MOST_KNOTS = 64  # that a weights file may hold; a few are enough


class Calibration(nn.Module):
    """A piecewise linear, non-decreasing map from [0, 1] to [0, 1]. It is not trained.

    Args:
        confidences: Of the network, rising from 0 to 1.
        shares: For each of them, the share of such pixels whose depth is right (`is_right` in `geometry.py`).
    """

    knots: Tensor  # [2, K] float32: confidences, shares
    slopes: Tensor  # [K - 1]

    def __init__(self, confidences: Sequence[float], shares: Sequence[float]) -> None:
        super().__init__()
        # Rounded to float32, in which they are stored: a file gives exactly the same map.
        x, y = (torch.tensor([float(v) for v in values]).tolist() for values in (confidences, shares))
        if not 2 <= len(x) == len(y) <= MOST_KNOTS:
            raise InputError(
                f"a calibration is 2 to {MOST_KNOTS} confidences and as many shares, "
                f"got {len(x)} and {len(y)}"
            )
        if not all(math.isfinite(value) and 0 <= value <= 1 for value in (*x, *y)):
            raise InputError("all numbers of a calibration must lie in 0..1")
        rising = all(a < b for a, b in itertools.pairwise(x))
        if not rising or (x[0], x[-1]) != (0.0, 1.0) or sorted(y) != y:
            raise InputError("the confidences of a calibration must rise from 0 to 1, its shares never fall")
        knots = torch.tensor([x, y], dtype=torch.float64)
        steps = knots.diff(dim=1)
        # Not persistent: they stand in the header of a weights file, not among its tensors.
        self.register_buffer("knots", knots.float(), persistent=False)
        self.register_buffer("slopes", (steps[1] / steps[0]).float(), persistent=False)

    def forward(self, confidence: Tensor) -> Tensor:
        """Any shape -> the same, float32. Does not wait for the device: a CUDA graph can record it."""
        flat = confidence.float().flatten()
        piece = torch.bucketize(flat, self.knots[0, 1:-1], out_int32=True, right=True)
        start = self.knots.index_select(1, piece)  # [2, N]
        return torch.addcmul(start[1], self.slopes[piece], flat - start[0]).clamp(0, 1).view_as(confidence)

    def to_dict(self) -> dict[str, list[float]]:
        """For JSON; `from_dict` reads it."""
        confidences, shares = self.knots.double().cpu().tolist()
        return {"said": confidences, "right": shares}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """From JSON; anything that is not a calibration is an InputError."""
        if not isinstance(values, dict) or set(values) != {"said", "right"}:
            raise InputError("a calibration has two lists of numbers, 'said' and 'right'")
        return cls(values["said"], values["right"])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device, but stay float32 where the network becomes half precision."""
        result: Any = super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return result  # type: ignore[no-any-return]
