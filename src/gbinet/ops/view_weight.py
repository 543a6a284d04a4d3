"""The mean of the source views' volumes, weighted per view and pixel by a small network.

The network is any module like ViewWeight of model/cost_volume.py: two hidden blocks of 1x1x1 convolutions,
`hidden`, and an `output`; called with one view's volume it gives that view's weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops

WIDTH = 16  # rows and columns of the kernels' matrices


def weigh_views_plain(volumes: Iterable[Tensor], network: nn.Module) -> Tensor:
    """Volumes [B, G, D, H, W] of one view after the other -> their weighted mean, [B, G, D, H, W].

    Needs memory for one view's volume and two sums, however many views there are.
    """
    weighted_sum: Tensor | None = None
    weight_sum: Tensor | None = None
    for volume in volumes:
        weight = network(volume)  # float32: half precision could underflow to zero
        weighted_sum = (
            volume * weight if weighted_sum is None else torch.addcmul(weighted_sum, volume, weight)
        )
        weight_sum = weight if weight_sum is None else weight_sum + weight
    assert weighted_sum is not None and weight_sum is not None  # two views or more
    return torch.div(weighted_sum, weight_sum.clamp_min(ops.TINY))


def is_folded(network: Any) -> bool:
    """Whether its batch norms are inside its convolutions."""
    return all(isinstance(block.norm, nn.Identity) for block in network.hidden)


def suits(network: nn.Module, groups: int, bins: int) -> bool:
    """Whether there are training kernels: for batch norms of one process, of the widths of ViewWeight."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    complete = [
        type(n) is nn.BatchNorm3d and n.training and n.momentum is not None and n.track_running_stats
        for n in norms
    ]
    widths = [n.num_features for n in norms]
    return all(complete) and widths == [16, 8] and groups <= 16 and groups & (groups - 1) == 0 and bins < 128


def weigh_views_fast(volumes: Tensor, network: Any) -> Tensor:
    """All views at once in training: [S, B, D, H, W, G] -> [B, D, H, W, G], with gradients.

    Where bins tie for the largest score the gradient goes to the first; torch's amax splits it.
    """
    first, second = network.hidden
    norms: tuple[nn.BatchNorm3d, nn.BatchNorm3d] = (first.norm, second.norm)
    output = network.output
    fused: Tensor = _WeighViews.apply(  # type: ignore[no-untyped-call]
        volumes.flatten(3, 4),
        first.conv.weight.flatten(1), norms[0].weight, norms[0].bias,
        second.conv.weight.flatten(1), norms[1].weight, norms[1].bias,
        output.weight.flatten(1), output.bias, norms,
    )  # fmt: skip
    return fused.reshape(*volumes.shape[1:])


@torch.no_grad()
def pack(network: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """A network with folded batch norms as cost_volume_triton.py reads it; None where it cannot be used.

    Matrices of the hidden layers [2, 16, 16] in `dtype`; their biases, the output's weights and its bias
    [4, 16] float32.
    """
    first, second = (block.conv for block in network.hidden)
    if first.in_channels > WIDTH or not ops.usable(first.weight):
        return None
    matrices, vectors = first.weight.new_zeros(2, WIDTH, WIDTH), first.weight.new_zeros(4, WIDTH)
    for i, conv in enumerate((first, second)):
        outputs, inputs = conv.weight.shape[:2]
        matrices[i, :inputs, :outputs] = conv.weight[:, :, 0, 0, 0].T
        vectors[i, :outputs] = conv.bias
    output = network.output
    vectors[2, : output.in_channels] = output.weight[0, :, 0, 0, 0]
    vectors[3, 0] = output.bias[0]
    return matrices.to(dtype), vectors.float()


class _WeighViews(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        volumes: Tensor,  # [S, B, D, N, G]
        weight1: Tensor,  # [16, G]
        gamma1: Tensor,
        beta1: Tensor,
        weight2: Tensor,  # [8, 16]
        gamma2: Tensor,
        beta2: Tensor,
        weight3: Tensor,  # [1, 8]
        bias3: Tensor,  # [1]
        norms: tuple[nn.BatchNorm3d, nn.BatchNorm3d],
    ) -> Tensor:
        from gbinet.ops import view_weight_triton

        dtype = volumes.dtype
        matrix1, matrix2 = _padded(weight1.mT, dtype), _padded(weight2.mT, dtype)
        vectors = torch.stack([_padded(v) for v in (gamma1, beta1, gamma2, beta2, weight3[0])])
        saved = view_weight_triton.forward(volumes, matrix1, matrix2, vectors, bias3, norms)
        ctx.save_for_backward(*saved)
        return saved[0]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        from gbinet.ops.view_weight_backward_triton import backward

        volumes, matrix1, rest = backward(upstream, ctx.saved_tensors)
        groups = volumes.shape[-1]
        beta1, gamma1, beta2, gamma2, weight3, bias3 = rest[:6]
        matrix2 = rest[6:]
        return (
            volumes, matrix1[:groups].mT, gamma1, beta1,
            matrix2[:8], gamma2[:8], beta2[:8], weight3[None, :8], bias3[:1], None,
        )  # fmt: skip


def _padded(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values [n] or [n, m] padded with zeros to [16] or [16, 16]."""
    missing = [n for size in reversed(values.shape) for n in (0, WIDTH - size)]
    return F.pad(values.to(dtype), missing)
