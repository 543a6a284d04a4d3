"""Weighing and fusing the source views' volumes in training. Twin of ViewWeight in model/cost_volume.py.

The view-weight network works on every voxel by itself, except for the statistics of its two batch norms. So
its hidden values are never written: every pass reads the volume (4 or 8 numbers per voxel) and computes the
16 and 8 hidden values again. Forwards one pass for each batch norm, one for the weights, one for the weighted
mean; backwards one pass for the output layer, one for the second and one for the first hidden layer.

Shapes: S source views, B samples, D bins, N pixels, G groups; B D N G < 2^31. Hidden layers are 16 wide; the
second one has 8 values and zeros behind them, because matrix products need 16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from gbinet.kernels import TINY
from gbinet.kernels.norm import PROGRAMS, finish_statistics
from gbinet.kernels.view_weight_passes import (
    fuse_kernel,
    hidden_backward_kernel,
    output_backward_kernel,
    statistics_kernel,
    weights_kernel,
)

WIDTH = 16
BLOCK = 128


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
        views, batch, bins, pixels, groups = volumes.shape
        rows = batch * bins * pixels
        matrix1, matrix2 = _padded(weight1.mT, volumes.dtype), _padded(weight2.mT, volumes.dtype)
        vectors = torch.stack([_padded(v) for v in (gamma1, beta1, gamma2, beta2, weight3[0])])
        shape = {"G": groups, "BLOCK": BLOCK, "PRECISION": _precision(volumes)}
        programs = min(triton.cdiv(rows, BLOCK), PROGRAMS)
        partial = vectors.new_empty(views, programs, 2, WIDTH)
        statistics: list[Tensor] = []
        for norm in norms:
            before = statistics or [vectors, vectors]
            assert norm.running_mean is not None and norm.running_var is not None
            assert norm.momentum is not None
            statistics_kernel[(programs, views)](
                volumes, matrix1, matrix2, vectors, *before, norm.running_mean, partial, rows,
                W=norm.num_features, SECOND=bool(statistics), **shape,
            )  # fmt: skip
            statistics += finish_statistics(
                partial, rows, WIDTH, norm.running_mean, norm.running_var, norm.momentum, norm.eps
            )
        numbers = torch.stack(statistics)  # [4, S, 16]
        weights = vectors.new_empty(views, batch, pixels)
        choices = torch.empty_like(weights, dtype=torch.int8)
        sizes = (batch, bins, pixels, views)
        weights_kernel[(triton.cdiv(batch * pixels, BLOCK), views)](
            volumes, matrix1, matrix2, vectors, bias3, numbers, weights, choices, *sizes, **shape
        )
        output = torch.empty_like(volumes[0])
        fuse_kernel[(triton.cdiv(rows, BLOCK),)](
            volumes, weights, output, *sizes, G=groups, BLOCK=BLOCK, TINY=TINY
        )
        ctx.save_for_backward(volumes, output, matrix1, matrix2, vectors, numbers, weights, choices)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        volumes, output, matrix1, matrix2, vectors, numbers, weights, choices = ctx.saved_tensors
        views, batch, bins, pixels, groups = volumes.shape
        rows = batch * bins * pixels
        upstream = upstream.contiguous()
        sizes = (batch, bins, pixels, views)
        shape = {"G": groups, "BLOCK": BLOCK, "TINY": TINY, "PRECISION": _precision(volumes)}
        slopes = torch.empty_like(weights)
        programs = min(triton.cdiv(batch * pixels, BLOCK), PROGRAMS)
        partial = vectors.new_empty(views, programs, 4, WIDTH)
        output_backward_kernel[(programs, views)](
            volumes, output, upstream, matrix1, matrix2, vectors, numbers, weights, choices, slopes, partial,
            *sizes, **shape,
        )  # fmt: skip
        sums2 = partial.sum(1)  # [S, 4, 16]
        programs = min(triton.cdiv(rows, BLOCK), PROGRAMS)
        partial = vectors.new_empty(views, programs, 2, WIDTH)
        matrices = vectors.new_empty(2, views, programs, WIDTH, WIDTH)
        gradient = torch.empty_like(volumes)
        turned = (matrix1.mT.contiguous(), matrix2.mT.contiguous())
        common = (volumes, upstream, matrix1, matrix2, *turned, vectors, numbers, weights, choices, slopes)
        hidden_backward_kernel[(programs, views)](
            *common, sums2, sums2, partial, matrices[0], gradient, *sizes, LAST=False, **shape
        )
        sums1 = partial.sum(1)  # [S, 2, 16]
        hidden_backward_kernel[(programs, views)](
            *common, sums2, sums1, partial, matrices[1], gradient, *sizes, LAST=True, **shape
        )
        grad_weight2, turned_grad_weight1 = matrices.sum((1, 2))  # [16, 16] each
        beta1, gamma1 = sums1.sum(0)
        beta2, gamma2, weight3, bias3 = sums2.sum(0)
        return (
            gradient, turned_grad_weight1[:groups].mT, gamma1, beta1,
            grad_weight2[:8], gamma2[:8], beta2[:8], weight3[None, :8], bias3[:1], None,
        )  # fmt: skip


def _padded(values: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
    """[16] or [16, 16]: the values and zeros."""
    missing = [n for size in reversed(values.shape) for n in (0, WIDTH - size)]
    return F.pad(values.to(kind), missing)


def _precision(values: Tensor) -> str:
    return "ieee" if values.dtype == torch.float32 else "tf32"  # only float32 looks at it


def supported(network: nn.Module, groups: int, bins: int) -> bool:
    """In training, with batch norms of one process, of the widths that the kernels are written for."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    usual = [
        type(n) is nn.BatchNorm3d and n.training and n.momentum is not None and n.track_running_stats
        for n in norms
    ]
    widths = [n.num_features for n in norms]
    return all(usual) and widths == [16, 8] and groups <= 16 and groups & (groups - 1) == 0 and bins < 128


def weigh_views(volumes: Tensor, network: Any) -> Tensor:
    """Volumes of the sources [S, B, D, H, W, G] -> their mean, weighted by a ViewWeight, [B, D, H, W, G].

    Where bins tie for the largest score the gradient goes to the first; torch's amax shares it out.
    """
    first, second = network.hidden
    norms: tuple[nn.BatchNorm3d, nn.BatchNorm3d] = (first.norm, second.norm)
    for norm in norms:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(len(volumes))
    output = network.output
    fused: Tensor = _WeighViews.apply(
        volumes.flatten(3, 4),
        first.conv.weight.flatten(1), norms[0].weight, norms[0].bias,
        second.conv.weight.flatten(1), norms[1].weight, norms[1].bias,
        output.weight.flatten(1), output.bias, norms,
    )  # fmt: skip
    return fused.reshape(*volumes.shape[1:])
