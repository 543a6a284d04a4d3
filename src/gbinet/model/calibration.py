"""Maps the network's confidence to the measured share of correct pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from gbinet.errors import InputError

MOST_KNOTS = 64  # numbers that a weights file may hold: a map is a few of them


class Calibration(nn.Module):
    """A piecewise linear map that never falls, from [0, 1] to [0, 1]. It takes no part in training.

    Args:
        said: Confidences of the network, rising from 0 to 1.
        right: For each of them, the share of such pixels whose depth is right (`is_right` in `geometry.py`).
    """

    knots: Tensor  # [2, K] float32: said, right
    slopes: Tensor  # [K - 1]

    def __init__(self, said: Sequence[float], right: Sequence[float]) -> None:
        super().__init__()
        # As float32, in which they are kept: what is written is read back as the same map.
        said, right = (torch.tensor([float(v) for v in values]).tolist() for values in (said, right))
        if not 2 <= len(said) == len(right) <= MOST_KNOTS:
            raise InputError(
                f"a calibration is 2 to {MOST_KNOTS} confidences and as many shares, "
                f"got {len(said)} and {len(right)}"
            )
        if not all(math.isfinite(value) and 0 <= value <= 1 for value in (*said, *right)):
            raise InputError("all numbers of a calibration must lie in 0..1")
        rising = all(a < b for a, b in itertools.pairwise(said))
        if not rising or (said[0], said[-1]) != (0.0, 1.0) or sorted(right) != right:
            raise InputError("the confidences of a calibration must rise from 0 to 1, its shares never fall")
        knots = torch.tensor([said, right], dtype=torch.float64)
        steps = knots.diff(dim=1)
        # Not persistent: they stand in the header of a weights file, not among its tensors.
        self.register_buffer("knots", knots.float(), persistent=False)
        self.register_buffer("slopes", (steps[1] / steps[0]).float(), persistent=False)

    def forward(self, confidence: Tensor) -> Tensor:
        """Any shape, float32. Nothing is read back from the device: a CUDA graph can record it."""
        flat = confidence.float().flatten()
        piece = torch.bucketize(flat, self.knots[0, 1:-1], out_int32=True, right=True)
        begin = self.knots.index_select(1, piece)  # [2, N]
        return torch.addcmul(begin[1], self.slopes[piece], flat - begin[0]).clamp(0, 1).view_as(confidence)

    def to_dict(self) -> dict[str, list[float]]:
        """For JSON; `Calibration(**values)` is the same map again."""
        said, right = self.knots.double().cpu().tolist()
        return {"said": said, "right": right}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """To another device, but float32 in networks of half precision too."""
        moved: Any = super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return moved  # type: ignore[no-any-return]
