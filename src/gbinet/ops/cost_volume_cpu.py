"""The cost volume on a CPU, without gradients: rows of channels are sampled, layers are matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gbinet import ops
from gbinet.camera import pixel_centres
from gbinet.ops.bilinear_cpu import BORDER, RowTable, sample, table
from gbinet.ops.threads_cpu import in_bands

BAND_VALUES = 1 << 20  # sampled at a time by a thread: worth an operation, and small enough for the cache


def cost_volume(
    views: Sequence[Tensor],  # [B, C, h_v, w_v] each, the reference first
    transforms: Tensor,  # [B, V - 1, 12] at the features' scale
    depth: Tensor,  # [B, D, H, W] float32
    network: Any,  # computes the weights of views, its batch norms folded: see view_weight.py
    groups: int,
) -> Tensor:  # [B, G, D, H, W] in the features' type
    batch, bins, height, width = depth.shape
    result = views[0].new_empty(batch, groups, bins, height, width)
    layers = [_layer(conv) for conv in (*(block.conv for block in network.hidden), network.output)]
    group_means = _group_means(views[0].shape[1], groups)
    rays = pixel_centres(height, width)  # [H, W, 2]
    for i in range(batch):
        sources = [table(view[i]) for view in views[1:]]

        def work(band: slice, i: int = i, sources: Sequence[RowTable] = sources) -> None:
            reference = views[0][i, :, band].permute(1, 2, 0).float().contiguous()  # [h, W, C]
            total = weights = None
            for source, transform in zip(sources, transforms[i], strict=True):
                x, y = _positions(transform, rays[band], depth[i, :, band])  # [D, h, W] each
                sampled = sample(source, x.flatten(), y.flatten())  # [D * h * W, C]
                sampled.view(bins, *reference.shape).mul_(reference)
                volume = group_means @ sampled.T  # [G, D * h * W]
                weight = _weight(volume, layers, bins)  # [h * W]
                volume = volume.view(groups, bins, -1)
                total = volume.mul_(weight) if total is None else total.addcmul_(volume, weight)
                weights = weight if weights is None else weights.add_(weight)
            assert total is not None and weights is not None  # two views or more
            total.div_(weights.clamp_min_(ops.TINY))
            result[i, :, :, band] = total.view(groups, bins, *reference.shape[:2])

        in_bands(work, height, max(1, BAND_VALUES // (bins * width * views[0].shape[1])))
    return result


def _positions(transform: Tensor, pixels: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of pixels [h, W, 2] at depths [D, h, W] in the source's table, x and y [D, h, W].

    What is not in front of the source gets a position far outside.
    """
    x, y = pixels.unbind(-1)
    rows = torch.cat([transform[:9].view(3, 3), transform[9:, None]], dim=1)  # [3, 4], homogeneous
    rows[:2] += BORDER * rows[2]
    rays = [(a * x).add_(b * y).add_(c) for a, b, c in rows[:, :3].tolist()]  # [h, W] each
    x, y, z = (torch.addcmul(t, depth, ray) for t, ray in zip(rows[:, 3], rays, strict=True))
    if not float(z.amin()) > 0:
        behind = ~(z > 0)
        z.masked_fill_(behind, 1)
        x.masked_fill_(behind, -1e6)
    return x.div_(z), y.div_(z)


def _weight(volume: Tensor, layers: Sequence[tuple[Tensor, Tensor]], bins: int) -> Tensor:
    """The weight of one view at each pixel, [N], from its volume [G, D * N]."""
    *hidden_layers, (matrix, bias) = layers
    hidden = volume
    for hidden_matrix, hidden_bias in hidden_layers:
        hidden = torch.addmm(hidden_bias, hidden_matrix, hidden).relu_()
    score = torch.addmm(bias, matrix, hidden)  # [1, D * N]
    return score.view(bins, -1).amax(0).sigmoid_()


def _layer(conv: nn.Conv3d) -> tuple[Tensor, Tensor]:
    """Matrix [O, I] and bias [O, 1] of a 1x1x1 convolution."""
    assert conv.bias is not None
    return conv.weight.flatten(1).float(), conv.bias[:, None].float()


def _group_means(channels: int, groups: int) -> Tensor:
    """The matrix [G, C] that takes the mean of each group of channels."""
    each = channels // groups
    return torch.eye(groups).repeat_interleave(each, dim=1) / each
