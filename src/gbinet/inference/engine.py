"""The network made ready for inference: batch norms folded, half precision, fused kernels."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from gbinet import kernels
from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.inference.fold import fold_batch_norms
from gbinet.inference.fused import FusedPyramid, FusedRegulariser
from gbinet.model.cost_volume import Maps, ViewWeight, views_of
from gbinet.model.encoder import SCALES
from gbinet.model.gbinet import Features, GBiNet
from gbinet.model.layers import ConvBlock3d
from gbinet.model.regulariser import Regulariser
from gbinet.model.search import SearchState
from gbinet.model.strategies import State
from gbinet.model.warp import sources_from_reference


class Engine(GBiNet):
    """The same network and the same loop, faster and smaller. Geometry stays in float32."""

    def __init__(self, model: GBiNet, device: torch.device | str, dtype: torch.dtype | None = None) -> None:
        """dtype None: float16 on CUDA, float32 elsewhere."""
        super().__init__(model.config)
        device = torch.device(device)
        dtype = dtype or (torch.float16 if device.type == "cuda" else torch.float32)
        folded = fold_batch_norms(model)
        self.encoder = FusedPyramid(folded.encoder)  # type: ignore[assignment]  # the same call
        self.regularisers = nn.ModuleList(_fuse(r) for r in folded.regularisers)
        self.view_weights = folded.view_weights
        self.packed_view_weights = [_pack(v, device, dtype) for v in folded.view_weights]
        self.to(device, dtype).eval()
        for parameter in self.parameters():  # channels last: what the fused kernels read and cuDNN likes
            layouts = {4: torch.channels_last, 5: torch.channels_last_3d} if device.type == "cuda" else {}
            if parameter.dim() in layouts:
                parameter.data = parameter.data.contiguous(memory_format=layouts[parameter.dim()])

    def save(self, path: str | Path, half: bool = False) -> Path:
        raise InputError(f"{path}: an engine has lost its batch norms; save the network it was made from")

    def encode(self, images: Tensor) -> Features:
        """One view after the other, so that the encoder's temporaries are those of one image."""
        dtype = next(self.parameters()).dtype
        batch, views = images.shape[:2]
        outputs: list[Tensor] = []
        for view in range(views):
            maps = super().encode(images[:, view : view + 1].to(dtype))  # each [B, 1, C, h, w]
            if not outputs:
                shapes = [(batch, views, m.shape[3], m.shape[4], m.shape[2]) for m in maps]
                outputs = [images.new_empty(s, dtype=dtype).permute(0, 1, 4, 2, 3) for s in shapes]
                if images.device.type == "cpu":  # whose sampling reads one channel after the other
                    outputs = [output.contiguous() for output in outputs]
            for output, one in zip(outputs, maps, strict=True):
                output[:, view] = one[:, 0]
        return tuple(outputs)  # [B, V, C, h, w], channels last in memory

    def cost_volume(self, maps: Maps, cameras: Camera, state: State, scale: int) -> Tensor:
        reference, *sources = views_of(maps)
        packed = self.packed_view_weights[scale]
        if packed is None or not isinstance(state, SearchState) or not kernels.usable(reference, *sources):
            return super().cost_volume(maps, cameras, state, scale)
        from gbinet.kernels.cost_volume import fused_cost_volume

        matrices, offsets = sources_from_reference(cameras, 1 / SCALES[scale])
        groups = self.config.groups[scale]
        return fused_cost_volume(reference, sources, matrices, offsets, state, packed, groups)


def _fuse(regulariser: nn.Module) -> FusedRegulariser:
    assert isinstance(regulariser, Regulariser)
    return FusedRegulariser(regulariser)


@torch.no_grad()
def _pack(net: nn.Module, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """A folded view-weight network as the fused kernel reads it: layers [2, 16, 16] and vectors [4, 16].

    None where it has more groups than the kernel takes.
    """
    assert isinstance(net, ViewWeight)
    first = net.hidden[0]
    assert isinstance(first, ConvBlock3d)
    if first.conv.in_channels > 16:
        return None
    matrices = torch.zeros(2, 16, 16)
    vectors = torch.zeros(4, 16)
    for i, block in enumerate(net.hidden):
        assert isinstance(block, ConvBlock3d) and block.conv.bias is not None
        outputs, inputs = block.conv.weight.shape[:2]
        matrices[i, :inputs, :outputs] = block.conv.weight[:, :, 0, 0, 0].T
        vectors[i, :outputs] = block.conv.bias
    assert net.output.bias is not None
    vectors[2, : net.output.weight.shape[1]] = net.output.weight[0, :, 0, 0, 0]
    vectors[3, 0] = net.output.bias[0]
    return matrices.to(device, dtype), vectors.to(device)
