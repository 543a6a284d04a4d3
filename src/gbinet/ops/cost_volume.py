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
    """The maps, for cost volumes only, and the reference's map by itself, for others.

    Both from one tensor with a gradient: backwards the reference's is added to the cost volumes' in place,
    where it would else become a gradient of all views, zero but in one.
    """
    if isinstance(maps, Tensor) and maps.requires_grad and torch.is_grad_enabled():
        together: tuple[Tensor, Tensor] = _WithReference.apply(maps)  # type: ignore[no-untyped-call]
        return together
    return maps, views_of(maps)[0]


class _WithReference(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.shape = maps.shape
        return maps.view_as(maps), maps[:, 0]

    @staticmethod
    def backward(ctx: Any, of_maps: Tensor | None, of_reference: Tensor | None) -> Tensor | None:
        if of_reference is None:
            return of_maps
        if of_maps is None:
            of_maps = of_reference.new_zeros(ctx.shape)
        if 0 in of_maps.stride():  # expanded: several places are one number
            of_maps = of_maps.clone()
        of_maps[:, 0] += of_reference  # made by the cost volumes for this alone
        return of_maps


def reference_size(maps: Maps) -> tuple[int, int]:
    """Height and width of the reference's map."""
    height, width = views_of(maps)[0].shape[-2:]
    return height, width


def cost_volume(
    maps: Maps,
    transforms: Tensor,  # [B, V - 1, 12] of the whole images: see warp.py
    hypotheses: Bins | Tensor,  # what they follow from, or the depths themselves, [B, D, H, W] float32
    network: nn.Module,  # gives views their weights: see view_weight.py
    groups: int,
    scale: int = 1,  # image size / feature size
    packed: tuple[Tensor, Tensor] | None = None,  # the network for the kernel: view_weight.pack
) -> Tensor:  # [B, G, D, H, W] in the features' type
    """Correlation of the reference with all sources at each hypothesis, fused over the sources."""
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
    together = network.training and isinstance(maps, Tensor) and ops.usable(maps, depth)
    if (
        together
        and warp.suits(views[0], depth, groups)
        and view_weight.suits(network, groups, depth.shape[1])
    ):
        assert isinstance(maps, Tensor)
        return cost_volume_training(maps, transforms, depth, network, groups)
    return cost_volume_plain(views, transforms, depth, network, groups)


def cost_volume_training(
    features: Tensor, transforms: Tensor, depth: Tensor, network: nn.Module, groups: int
) -> Tensor:
    """All views together by the training kernels. features [B, V, C, H, W], transforms at their scale."""
    mixed = torch.is_autocast_enabled(features.device.type)
    kind = torch.get_autocast_dtype(features.device.type) if mixed else features.dtype
    volumes = warp.warp_correlation_views(features, transforms, depth, groups, kind)
    return view_weight.weigh_views_fast(volumes, network).permute(0, 4, 1, 2, 3)


def cost_volume_plain(
    views: Sequence[Tensor], transforms: Tensor, depth: Tensor, network: nn.Module, groups: int
) -> Tensor:
    """One view after the other. transforms [B, V - 1, 12] at the features' scale, depth [B, D, H, W]."""
    bands = []
    for rows in _bands(depth, training=network.training or torch.is_grad_enabled()):
        reference, sources = views[0][..., rows, :], views[1:]
        volumes = _volumes(reference, sources, _below(transforms, rows.start), depth[..., rows, :], groups)
        bands.append(view_weight.weigh_views_plain(volumes, network).to(reference.dtype))
    return bands[0] if len(bands) == 1 else torch.cat(bands, dim=3)


def _volumes(
    reference: Tensor, sources: Sequence[Tensor], transforms: Tensor, depth: Tensor, groups: int
) -> Iterator[Tensor]:
    for source, transform in zip(sources, transforms.unbind(1), strict=True):
        yield warp.warp_correlation(reference, source, transform, depth, groups)


def _below(transforms: Tensor, top: int) -> Tensor:
    """Transforms [..., 12] of the part of the reference that begins at a row."""
    if not top:
        return transforms
    moved = transforms.clone()
    moved[..., 2:9:3] += top * transforms[..., 1:8:3]
    return moved


def _bands(hypotheses: Tensor, training: bool) -> list[slice]:
    """Rows of the reference to work on at a time.

    On a CPU, bands whose intermediate results fit into its cache take half the time. A GPU takes all rows at
    once, and so does training, whose batch norms look at the whole volume.
    """
    height, width = hypotheses.shape[-2:]
    rows = height if training or hypotheses.device.type != "cpu" else max(1, BAND_PIXELS // width)
    return [slice(top, min(top + rows, height)) for top in range(0, height, rows)]
