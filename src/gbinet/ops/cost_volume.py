"""The cost volume of one stage: correlation with every source view, weighted per pixel and summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops import view_weight, warp
from gbinet.ops.bins import Bins

# Feature maps of one scale: one tensor [B, V, C, H, W], or a tensor [B, C, h_v, w_v] per view where the views
# differ in size (a tile of the reference against whole sources). View 0 is the reference.
Maps = Tensor | Sequence[Tensor]

BAND_PIXELS = 1 << 14  # of the reference, worked on at a time on a CPU


def views_of(maps: Maps) -> Sequence[Tensor]:
    """One map [B, C, h, w] per view."""
    return maps.unbind(1) if isinstance(maps, Tensor) else maps


def with_reference(maps: Maps) -> tuple[Maps, Tensor]:
    """The maps, for cost volumes only, and the reference's map by itself, for everything else.

    In training, the gradient of the reference's map is added in place to that of the maps. Plain indexing
    would make it a gradient of all views first, zero in all but one.
    """
    if isinstance(maps, Tensor) and maps.requires_grad and torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = _WithReference.apply(maps)  # type: ignore[no-untyped-call]
        return result
    return maps, views_of(maps)[0]


class _WithReference(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.shape = maps.shape
        return maps.view_as(maps), maps[:, 0]

    @staticmethod
    def backward(ctx: Any, grad_maps: Tensor | None, grad_reference: Tensor | None) -> Tensor | None:
        if grad_reference is None:
            return grad_maps
        if grad_maps is None:
            grad_maps = grad_reference.new_zeros(ctx.shape)
        if 0 in grad_maps.stride():  # expanded: several elements share memory
            grad_maps = grad_maps.clone()
        grad_maps[:, 0] += grad_reference  # in place: nobody else reads this gradient of the cost volumes
        return grad_maps


def reference_size(maps: Maps) -> tuple[int, int]:
    """Height and width of the reference's map."""
    height, width = views_of(maps)[0].shape[-2:]
    return height, width


def cost_volume(
    maps: Maps,
    transforms: Tensor,  # [B, V - 1, 12] of the whole images: see warp.py
    hypotheses: Bins | Tensor,  # bins, for their centres; or depths [B, D, H, W] float32
    network: nn.Module,  # computes the weights of views: see view_weight.py
    groups: int,
    scale: int = 1,  # image size / feature size
    packed: tuple[Tensor, Tensor] | None = None,  # the network as the kernel reads it: view_weight.pack
) -> Tensor:  # [B, G, D, H, W] in the features' type
    """Correlation of the reference with each source at every hypothesis, averaged by the views' weights."""
    views = views_of(maps)
    if packed is not None and isinstance(hypotheses, Bins) and ops.usable(*views):
        from gbinet.ops import cost_volume_triton

        return cost_volume_triton.cost_volume(
            views[0], views[1:], transforms, hypotheses, packed, groups, scale
        )
    depth = hypotheses.depths() if isinstance(hypotheses, Bins) else hypotheses
    transforms = warp.at_scale(transforms, scale)
    if ops.usable_on_cpu(*views) and view_weight.is_folded(network):
        from gbinet.ops import cost_volume_cpu

        return cost_volume_cpu.cost_volume(views, transforms, depth, network, groups)
    if isinstance(maps, Tensor) and _training_kernels_suit(maps, depth, network, groups):
        return cost_volume_training(maps, transforms, depth, network, groups)
    return cost_volume_plain(views, transforms, depth, network, groups)


def _training_kernels_suit(features: Tensor, depth: Tensor, network: nn.Module, groups: int) -> bool:
    if not (network.training and ops.usable(features, depth)):
        return False
    return warp.suits(features[:, 0], depth, groups) and view_weight.suits(network, groups, depth.shape[1])


def cost_volume_training(
    features: Tensor, transforms: Tensor, depth: Tensor, network: nn.Module, groups: int
) -> Tensor:
    """All views at once by the training kernels. features [B, V, C, H, W], transforms at their scale."""
    mixed = torch.is_autocast_enabled(features.device.type)
    dtype = torch.get_autocast_dtype(features.device.type) if mixed else features.dtype
    volumes = warp.warp_correlation_views(features, transforms, depth, groups, dtype)
    return view_weight.weigh_views_fast(volumes, network).permute(0, 4, 1, 2, 3)


def cost_volume_plain(
    views: Sequence[Tensor], transforms: Tensor, depth: Tensor, network: nn.Module, groups: int
) -> Tensor:
    """One view after the other. transforms [B, V - 1, 12] at the features' scale, depth [B, D, H, W]."""
    bands = []
    for rows in _bands(depth, training=network.training or torch.is_grad_enabled()):
        reference, below = views[0][..., rows, :], _starting_at_row(transforms, rows.start)
        volumes = _volumes(reference, views[1:], below, depth[..., rows, :], groups)
        bands.append(view_weight.weigh_views_plain(volumes, network).to(reference.dtype))
    return bands[0] if len(bands) == 1 else torch.cat(bands, dim=3)


def _volumes(
    reference: Tensor, sources: Sequence[Tensor], transforms: Tensor, depth: Tensor, groups: int
) -> Iterator[Tensor]:
    for source, transform in zip(sources, transforms.unbind(1), strict=True):
        yield warp.warp_correlation(reference, source, transform, depth, groups)


def _starting_at_row(transforms: Tensor, top: int) -> Tensor:
    """Transforms [..., 12] of the part of the reference that starts at a row."""
    if not top:
        return transforms
    shifted = transforms.clone()
    shifted[..., 2:9:3] += top * transforms[..., 1:8:3]  # M (x, y + top, 1)
    return shifted


def _bands(hypotheses: Tensor, training: bool) -> list[slice]:
    """Rows of the reference to work on at a time.

    On a CPU, bands whose intermediate results fit into its cache take half the time. On a GPU all rows are
    computed at once, and so they are in training, where batch norms need the whole volume.
    """
    height, width = hypotheses.shape[-2:]
    rows = height if training or hypotheses.device.type != "cpu" else max(1, BAND_PIXELS // width)
    return [slice(top, min(top + rows, height)) for top in range(0, height, rows)]
