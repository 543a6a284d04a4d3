"""Parents of pixels: what a chooser looks at, and what follows from its answer."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet import ops
from gbinet.ops.shares import shares
from gbinet.ops.side_by_side import side_by_side

NEAR = 4  # cells: differences are told apart up to about so many
SAME = 1  # cells: parents no further apart lead to the same answer
ALIGNED = 8  # channels: the kernels read rows of so many fastest


def inputs(
    volume: Tensor,  # [B, G, N, H, W]: how well each parent's depth matches
    reference: Tensor,  # [B, C, H, W] features
    cells: Tensor,  # [B, N, H, W] int32
) -> Tensor:
    """Matches, features, and how far the other parents are from a pixel's own (in (-1, 1), saturating), side
    by side: [B, N * G + C + N - 1, H, W].

    Channels last; for the kernels filled up with zeros to a multiple of 8 channels.
    """
    if torch.is_grad_enabled() or not ops.usable(volume, reference, cells):
        return inputs_plain(volume, reference, cells)
    from gbinet.ops.parents_triton import inputs as fast

    return fast(volume, reference, cells, NEAR, ALIGNED)


def inputs_plain(volume: Tensor, reference: Tensor, cells: Tensor) -> Tensor:
    away = torch.tanh((cells[:, 1:] - cells[:, :1]).float() / NEAR)
    parts = (*volume.unbind(2), reference, away)  # [B, G, H, W] of each parent, and so on
    return side_by_side(parts, reference, sum(part.shape[1] for part in parts))


def chosen(cells: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """cells [B, N, H, W] int32, logits [B, N, H, W] -> the chosen ones [B, H, W], and the probability of them
    and of those in the same cell or next to it, [B, 1, H, W] float32. The first has no gradient."""
    if ops.usable(cells, logits) and not (logits.requires_grad and torch.is_grad_enabled()):
        from gbinet.ops.parents_triton import chosen as fast

        return fast(cells, logits, SAME)
    return chosen_plain(cells, logits)


def chosen_plain(cells: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    cell = cells.gather(1, logits.detach().max(1, keepdim=True).indices)
    same = (cells - cell).abs() <= SAME
    confidence = torch.where(same, shares(logits.float()), 0.0).sum(1, keepdim=True).clamp(max=1.0)
    return cell[:, 0], confidence
