"""Encoder and regulariser of a folded network on fused kernels: every layer one pass over memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import kernels
from gbinet.model.deform import DeformConv2d, deform_conv2d
from gbinet.model.encoder import FeaturePyramid
from gbinet.model.layers import ConvBlock2d, ConvBlock3d, UpBlock3d
from gbinet.model.regulariser import MULTIPLE, Regulariser


@dataclass(frozen=True)
class _Layer:
    """A convolution as the kernels read it."""

    weight: Tensor  # [kd, kh, kw, I, O]; [I, O] for the 1x1 convolution of a merge
    bias: Tensor  # [O] float32


class FusedPyramid(nn.Module):
    """Same function as the folded encoder that it is made from; falls back to it off the GPU."""

    def __init__(self, folded: FeaturePyramid) -> None:
        super().__init__()
        self.plain = folded
        self._blocks: list[list[tuple[_Layer, int]]] | None = None  # per scale, fine to coarse: layer, stride
        self._laterals: list[_Layer] = []
        self._offsets: list[_Layer] = []

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if not kernels.usable(images):
            maps: tuple[Tensor, ...] = self.plain(images)
            return maps
        from gbinet.kernels.conv import conv2d
        from gbinet.kernels.merge import merge

        bottom_up = []
        current = images
        for blocks in self._blocks or self._pack():
            for layer, stride in blocks:
                current = conv2d(current, layer.weight, layer.bias, stride=stride)
            bottom_up.append(current)
        outputs = [self._output(0, bottom_up[3])]
        for level in (1, 2, 3):
            lateral = self._laterals[level - 1]
            merged = merge(bottom_up[3 - level], bottom_up[4 - level], lateral.weight, lateral.bias)
            bottom_up.pop()  # nobody reads the coarser map again
            outputs.append(self._output(level, merged))
        return tuple(outputs)

    def _output(self, level: int, features: Tensor) -> Tensor:
        from gbinet.kernels.conv import conv2d

        net = self.plain.output[level]
        if not isinstance(net, DeformConv2d):
            plain: Tensor = net(features)
            return plain
        layer = self._offsets[level]
        offsets = conv2d(features, layer.weight, layer.bias, relu=False)
        return deform_conv2d(features, offsets, net.weight)

    @torch.no_grad()
    def _pack(self) -> list[list[tuple[_Layer, int]]]:
        net = self.plain
        self._laterals = []
        for conv in net.lateral:
            assert isinstance(conv, nn.Conv2d) and conv.bias is not None
            self._laterals.append(_Layer(conv.weight[:, :, 0, 0].T.contiguous(), conv.bias.float()))
        self._offsets = [_layer(out.offset) for out in net.output if isinstance(out, DeformConv2d)]
        self._blocks = []
        for scale in net.bottom_up:
            assert isinstance(scale, nn.Sequential)
            convs = [block.conv for block in scale if isinstance(block, ConvBlock2d)]
            self._blocks.append([(_layer(conv), conv.stride[0]) for conv in convs])
        return self._blocks


class FusedRegulariser(nn.Module):
    """Same function as the folded regulariser that it is made from; falls back to it off the GPU."""

    def __init__(self, folded: Regulariser) -> None:
        super().__init__()
        self.plain = folded
        self._layers: dict[str, _Layer] | None = None  # made on first use, when type and device are settled

    def forward(self, volume: Tensor) -> Tensor:  # [B, G, D, H, W] -> logits [B, D, H, W]
        if not kernels.usable(volume):
            logits: Tensor = self.plain(volume)
            return logits
        from gbinet.kernels.conv import conv3d, conv_transpose3d

        layers = self._layers or self._pack()
        height, width = volume.shape[-2:]
        if height % MULTIPLE or width % MULTIPLE:
            volume = F.pad(volume, (0, -width % MULTIPLE, 0, -height % MULTIPLE))

        def conv(name: str, x: Tensor, stride: int = 1, relu: bool = True) -> Tensor:
            return conv3d(x, layers[name].weight, layers[name].bias, stride=stride, relu=relu)

        skips = [conv("entry", volume)]
        for level in range(3):
            skips.append(conv(f"down{level}.1", conv(f"down{level}.0", skips[-1], stride=2)))
        current = skips.pop()
        for level in range(3):
            layer = layers[f"up{level}"]
            current = conv_transpose3d(current, layer.weight, layer.bias, skip=skips.pop())
        return conv("logit", current, relu=False)[:, 0, :, :height, :width]

    @torch.no_grad()
    def _pack(self) -> dict[str, _Layer]:
        net = self.plain
        blocks: dict[str, nn.Module] = {"entry": net.entry}
        for level, pair in enumerate(net.down):
            assert isinstance(pair, nn.Sequential)
            blocks |= {f"down{level}.0": pair[0], f"down{level}.1": pair[1]}
        blocks |= {f"up{level}": block for level, block in enumerate(net.up)}
        self._layers = {name: _layer(block) for name, block in blocks.items()}
        self._layers["logit"] = _layer(net.logit)
        return self._layers


def _layer(block: nn.Module) -> _Layer:
    from gbinet.kernels.conv import pack

    conv = block.conv if isinstance(block, ConvBlock2d | ConvBlock3d | UpBlock3d) else block
    assert isinstance(conv, nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d)
    transposed = isinstance(conv, nn.ConvTranspose3d)
    bias = conv.weight.new_zeros(1) if conv.bias is None else conv.bias
    return _Layer(pack(conv.weight, transposed), bias.float())
