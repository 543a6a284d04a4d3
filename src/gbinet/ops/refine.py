"""Around the refiner's network: its input, and the refined cells from its output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gbinet import ops
from gbinet.ops.concat import concat_channels
from gbinet.ops.parents import ALIGNED
from gbinet.ops.softmax import reproducible_softmax

NEAR, FAR = 4, 64  # cells: differences saturate at about so many


def input_channels(candidates: int, features: int) -> int:
    """Channels of `inputs`, without padding, for so many candidates and channels of features."""
    differences = (candidates - 1) + (candidates - 2)  # to the first candidate, and of others
    return differences + 2 + features  # 2 confidences


def inputs(
    candidates: Tensor,  # [B, N, h, w] float32, in cells
    smoothings: int,  # the first so many candidates are ever stronger smoothings; the others lie beside edges
    confidences: Tensor,  # [B, 2, h, w]
    reference: Tensor,  # [B, C, h, w] features
    aligned: bool,  # padded with zeros to a multiple of 8 channels
) -> Tensor:
    """Differences of candidates, confidences and features as channels, [B, I, h, w], channels last.

    Differences saturate: how wrong an outlier is does not matter. All candidates minus the first; smoothings
    also minus the one before; those beside edges once more minus the first, on a larger scale.
    """
    count = input_channels(candidates.shape[1], reference.shape[1])
    channels = -(-count // ALIGNED) * ALIGNED if aligned else count
    if ops.usable(candidates, confidences, reference) and not torch.is_grad_enabled():
        from gbinet.ops import refine_triton

        return refine_triton.inputs(candidates, smoothings, confidences, reference, channels)
    return inputs_plain(candidates, smoothings, confidences, reference, channels)


def inputs_plain(
    candidates: Tensor, smoothings: int, confidences: Tensor, reference: Tensor, channels: int
) -> Tensor:
    return concat_channels(_input_maps(candidates, smoothings, confidences, reference), reference, channels)


def _input_maps(
    candidates: Tensor, smoothings: int, confidences: Tensor, reference: Tensor
) -> Iterator[Tensor]:
    """The maps that `inputs` concatenates, one after the other."""
    counts = [1, smoothings - 1, candidates.shape[1] - smoothings]
    first, smoother, sides = candidates.split(counts, dim=1)  # type: ignore[no-untyped-call]
    yield torch.tanh((smoother - first) / NEAR)
    yield torch.tanh((sides - first) / NEAR)
    yield torch.tanh(smoother.diff(dim=1))
    yield torch.tanh((sides - first) / FAR)
    yield confidences
    yield reference


def refined(output: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor | None]:
    """Refined cells [B, h, w] float32, and the logit of their confidence [B, 1, h, w] float32 or None.

    Args:
        output: Of the network, [B, N + 1 or N + 2, h, w]: logits of the candidates' weights, a correction in
            cells, and the logit of the confidence if there is one.
        candidates: [B, N, h, w] float32, in cells.
    """
    if ops.usable(output, candidates) and not torch.is_grad_enabled():
        from gbinet.ops import refine_triton

        cells, logit = refine_triton.refined(output, candidates)
    else:
        cells, logit = refined_plain(output.float(), candidates)
    return cells, logit if logit.shape[1] else None


def refined_plain(output: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """The logit is [B, 0, h, w] where there is none."""
    count = candidates.shape[1]
    counts = [count, 1, output.shape[1] - count - 1]
    weights, correction, logit = output.split(counts, dim=1)  # type: ignore[no-untyped-call]
    first = candidates[:, :1]
    # Of differences, not of cells: of thousands of cells float32 keeps few digits.
    mean = (reproducible_softmax(weights) * (candidates - first)).sum(1, keepdim=True)
    return (first + mean + correction)[:, 0], logit
