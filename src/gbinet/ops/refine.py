"""Around the refiner's network: what it looks at, and its answer from what it says."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gbinet import ops
from gbinet.ops.parents import ALIGNED
from gbinet.ops.shares import shares
from gbinet.ops.side_by_side import side_by_side

NEAR, FAR = 4, 64  # cells: differences are told apart up to about so many


def input_channels(places: int, features: int) -> int:
    """Channels of `inputs` before they are filled up."""
    return (places - 1) + (places - 2) + 2 + features  # differences to the first, others, confidences


def inputs(
    places: Tensor,  # [B, N, h, w] float32, in cells
    smoothings: int,  # so many of them are ever stronger smoothings; the others lie on the sides of edges
    sure: Tensor,  # [B, 2, h, w]
    reference: Tensor,  # [B, C, h, w] features
    aligned: bool,  # filled up with zeros to a multiple of 8 channels
) -> Tensor:
    """Differences of the places, confidences and features side by side, [B, I, h, w], channels last.

    Differences saturate: how wrong something is does not matter. All to the first place; of smoothings to the
    one before; of sides once more, on a larger scale.
    """
    count = input_channels(places.shape[1], reference.shape[1])
    filled = -(-count // ALIGNED) * ALIGNED if aligned else count
    if ops.usable(places, sure, reference) and not torch.is_grad_enabled():
        from gbinet.ops.refine_triton import inputs as fast

        return fast(places, smoothings, sure, reference, filled)
    return inputs_plain(places, smoothings, sure, reference, filled)


def inputs_plain(places: Tensor, smoothings: int, sure: Tensor, reference: Tensor, filled: int) -> Tensor:
    return side_by_side(_parts(places, smoothings, sure, reference), reference, filled)


def _parts(places: Tensor, smoothings: int, sure: Tensor, reference: Tensor) -> Iterator[Tensor]:
    """What `inputs` puts side by side, one after the other."""
    first, smoother, sides = places.split([1, smoothings - 1, places.shape[1] - smoothings], dim=1)  # type: ignore[no-untyped-call]
    yield torch.tanh((smoother - first) / NEAR)
    yield torch.tanh((sides - first) / NEAR)
    yield torch.tanh(smoother.diff(dim=1))
    yield torch.tanh((sides - first) / FAR)
    yield sure
    yield reference


def mixed(said: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
    """What the network said, [B, N + 1 (+ 1), h, w], and places [B, N, h, w] -> their mean by its first N
    numbers plus the next one, [B, h, w]; and the last number, [B, 1, h, w], if there is one. Float32."""
    if ops.usable(said, places) and not torch.is_grad_enabled():
        from gbinet.ops.refine_triton import mixed as fast

        place, logit = fast(said, places)
    else:
        place, logit = mixed_plain(said.float(), places)
    return place, logit if logit.shape[1] else None


def mixed_plain(said: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    count = places.shape[1]
    weights, correction, logit = said.split([count, 1, said.shape[1] - count - 1], dim=1)  # type: ignore[no-untyped-call]
    first = places[:, :1]
    # Differences to the first, not places: of thousands of cells float32 keeps few digits.
    mean = (shares(weights) * (places - first)).sum(1, keepdim=True)
    return (first + mean + correction)[:, 0], logit
