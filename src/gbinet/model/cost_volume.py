"""The cost volume of one stage: correlation with every source view, weighted per pixel and summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gbinet import kernels
from gbinet.camera import Camera
from gbinet.model.layers import ConvBlock3d
from gbinet.model.warp import sources_from_reference, warp_correlation

# Feature maps of one scale: one tensor [B, V, C, H, W], or a tensor [B, C, h_v, w_v] per view where the views
# differ in size (a tile of the reference against whole sources). View 0 is the reference.
Maps = Tensor | Sequence[Tensor]

BAND_PIXELS = 1 << 14  # of the reference, worked on at a time on a CPU


def views_of(maps: Maps) -> Sequence[Tensor]:
    """One map [B, C, h, w] per view."""
    return maps.unbind(1) if isinstance(maps, Tensor) else maps


class ViewWeight(nn.Module):
    """How much a source view can be trusted at each pixel, from its correlation volume."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(ConvBlock3d(groups, 16, kernel=1), ConvBlock3d(16, 8, kernel=1))
        self.output = nn.Conv3d(8, 1, 1)

    def forward(self, volume: Tensor) -> Tensor:  # [B, G, D, H, W] -> [B, 1, 1, H, W] in (0, 1)
        score: Tensor = self.output(self.hidden(volume))
        return score.float().sigmoid().amax(2, keepdim=True)


def cost_volume(
    features: Maps,
    cameras: Camera,  # [B, V] of the full-size images
    hypotheses: Tensor,  # [B, D, H, W] float32
    view_weight: nn.Module,
    groups: int,
    scale: float,  # feature size / image size
) -> Tensor:  # [B, G, D, H, W] in the features' type
    """Correlation of the reference with all sources at each hypothesis, fused over the sources."""
    matrices, offsets = sources_from_reference(cameras, scale)
    if view_weight.training and isinstance(features, Tensor) and kernels.usable(features, hypotheses):
        fused = _fused_training(features, matrices, offsets, hypotheses, view_weight, groups)
        if fused is not None:
            return fused
    reference, *sources = views_of(features)
    bands = []
    for rows in _bands(hypotheses, training=view_weight.training or torch.is_grad_enabled()):
        below = torch.cat([matrices[..., :2], matrices[..., 2:] + rows.start * matrices[..., 1:2]], dim=-1)
        part = (reference[..., rows, :], sources, below, offsets, hypotheses[..., rows, :])
        bands.append(fuse_views(*part, view_weight, groups))
    return bands[0] if len(bands) == 1 else torch.cat(bands, dim=3)


def _fused_training(
    features: Tensor,  # [B, V, C, H, W]
    matrices: Tensor,
    offsets: Tensor,
    hypotheses: Tensor,
    view_weight: nn.Module,
    groups: int,
) -> Tensor | None:
    """All views together by the fast kernels, where these serve; otherwise None. See fuse_views."""
    from gbinet.kernels import view_weight as fast
    from gbinet.kernels import warp as fast_warp

    if not fast_warp.supported(features[:, 0], hypotheses, groups):
        return None
    if not fast.supported(view_weight, groups, hypotheses.shape[1]):
        return None
    mixed = torch.is_autocast_enabled(features.device.type)
    kind = torch.get_autocast_dtype(features.device.type) if mixed else features.dtype
    volumes = fast_warp.warp_correlation_views(features, matrices, offsets, hypotheses, groups, kind)
    return fast.weigh_views(volumes, view_weight).permute(0, 4, 1, 2, 3)


def _bands(hypotheses: Tensor, training: bool) -> list[slice]:
    """Rows of the reference to work on at a time.

    On a CPU, bands whose intermediate results fit into its cache take half the time. A GPU takes all rows at
    once, and so does training, whose batch norms look at the whole volume.
    """
    height, width = hypotheses.shape[-2:]
    rows = height if training or hypotheses.device.type != "cpu" else max(1, BAND_PIXELS // width)
    return [slice(top, min(top + rows, height)) for top in range(0, height, rows)]


def fuse_views(
    reference: Tensor,  # [B, C, H, W]
    sources: Sequence[Tensor],  # V - 1 maps [B, C, h, w]
    matrices: Tensor,  # [B, V - 1, 3, 3], see sources_from_reference
    offsets: Tensor,  # [B, V - 1, 3]
    hypotheses: Tensor,  # [B, D, H, W]
    view_weight: nn.Module,
    groups: int,
) -> Tensor:  # [B, G, D, H, W]
    """One view after the other: memory for one view's volume and two sums, however many views."""
    weighted_sum: Tensor | None = None
    weight_sum: Tensor | None = None
    for source, matrix, offset in zip(sources, matrices.unbind(1), offsets.unbind(1), strict=True):
        volume = warp_correlation(reference, source, matrix, offset, hypotheses, groups)
        weight = view_weight(volume)  # float32: half precision could underflow to zero
        weighted_sum = (
            volume * weight if weighted_sum is None else torch.addcmul(weighted_sum, volume, weight)
        )
        weight_sum = weight if weight_sum is None else weight_sum + weight
    assert weighted_sum is not None and weight_sum is not None  # two views or more
    return torch.div(weighted_sum, weight_sum.clamp_min(kernels.TINY)).to(reference.dtype)
