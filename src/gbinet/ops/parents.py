"""Parents of pixels: the input of the network that chooses among them, and the choice from its logits."""

from __future__ import annotations

import torch
from torch import Tensor

from gbinet import ops
from gbinet.ops.concat import concat_channels
from gbinet.ops.softmax import reproducible_softmax

NEAR = 4  # cells: differences saturate at about so many
SAME = 1  # cells: parents no further apart lead to the same depth
ALIGNED = 8  # channels: the kernels read multiples of so many fastest


def inputs(
    volume: Tensor,  # [B, G, N, H, W]: how well each parent's depth matches
    reference: Tensor,  # [B, C, H, W] features
    cells: Tensor,  # [B, N, H, W] int32
) -> Tensor:
    """Matches, features, and differences of the other parents to a pixel's own, [B, N * G + C + N - 1, H, W].

    Differences saturate, in (-1, 1). Channels last; for the kernels padded with zeros to a multiple of 8.
    """
    if torch.is_grad_enabled() or not ops.usable(volume, reference, cells):
        return inputs_plain(volume, reference, cells)
    from gbinet.ops.parents_triton import inputs as fast

    return fast(volume, reference, cells, NEAR, ALIGNED)


def inputs_plain(volume: Tensor, reference: Tensor, cells: Tensor) -> Tensor:
    differences = torch.tanh((cells[:, 1:] - cells[:, :1]).float() / NEAR)
    maps = (*volume.unbind(2), reference, differences)  # [B, G, H, W] of each parent, and so on
    return concat_channels(maps, reference, sum(m.shape[1] for m in maps))


def chosen(cells: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable parents, and the probability of their cells and the ones next to them.

    cells [B, N, H, W] int32, logits [B, N, H, W] -> [B, H, W] int32, [B, 1, H, W] float32 with gradient.
    """
    if ops.usable(cells, logits) and not (logits.requires_grad and torch.is_grad_enabled()):
        from gbinet.ops.parents_triton import chosen as fast

        return fast(cells, logits, SAME)
    return chosen_plain(cells, logits)


def chosen_plain(cells: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    cell = cells.gather(1, logits.detach().max(1, keepdim=True).indices)
    same = (cells - cell).abs() <= SAME
    confidence = (
        torch.where(same, reproducible_softmax(logits.float()), 0.0).sum(1, keepdim=True).clamp(max=1.0)
    )
    return cell[:, 0], confidence
