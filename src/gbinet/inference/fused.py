"""Encoder and regulariser of a folded network on fused kernels: every layer one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import kernels
from gbinet.model.choice import Chooser, differences
from gbinet.model.deform import DeformConv2d
from gbinet.model.encoder import SCALES, FeaturePyramid
from gbinet.model.layers import ConvBlock2d, ConvBlock3d, UpBlock3d
from gbinet.model.regulariser import MULTIPLE, Regulariser
from gbinet.model.search import PARENTS


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
        self.channels = folded.channels
        self._blocks: list[list[tuple[_Layer, int]]] | None = None  # per scale, fine to coarse: layer, stride
        self._laterals: list[_Layer] = []
        self._outputs: list[tuple[_Layer, Tensor]] = []  # offsets and taps

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if not kernels.usable(images):
            maps: tuple[Tensor, ...] = self.plain(images)
            return maps
        batch, _, height, width = images.shape
        outputs = self.room(images, (batch, height, width))
        self.encode_into(images, outputs)
        return tuple(output.permute(0, 3, 1, 2) for output in outputs)

    def room(self, like: Tensor, size: tuple[int, ...]) -> list[Tensor]:
        """Memory for features of images of size (..., H, W), per scale [..., H / s, W / s, C_s]."""
        *leading, height, width = size
        pairs = zip(SCALES, self.channels, strict=True)
        return [like.new_empty(*leading, height // s, width // s, channels) for s, channels in pairs]

    def encode_into(self, images: Tensor, outputs: Sequence[Tensor]) -> None:
        """Normalised images [B, 3, H, W] -> maps, written to `outputs`, coarse to fine, [B, h, w, C] each.

        No map stays alive longer than it is needed.
        """
        from gbinet.kernels.conv import conv2d
        from gbinet.kernels.merge import merge

        bottom_up = []
        for blocks in self._blocks or self._pack():
            for layer, stride in blocks:
                images = conv2d(images, layer.weight, layer.bias, stride=stride)
            bottom_up.append(images)
        self._write(0, images, outputs[0])
        del images
        for level in (1, 2, 3):
            lateral = self._laterals[level - 1]
            merged = merge(bottom_up[-2], bottom_up[-1], lateral.weight, lateral.bias)
            del bottom_up[-2 if level == 3 else -1 :]  # nobody reads the coarser map again
            self._write(level, merged, outputs[level])
            del merged  # before the next, larger one is made

    def _write(self, level: int, features: Tensor, output: Tensor) -> None:
        from gbinet.kernels.conv import conv2d
        from gbinet.kernels.deform import deform_conv2d_into

        layer, taps = self._outputs[level]
        offsets = conv2d(features, layer.weight, layer.bias, relu=False, planar=True)
        deform_conv2d_into(features, offsets, taps, output)

    @torch.no_grad()
    def _pack(self) -> list[list[tuple[_Layer, int]]]:
        from gbinet.kernels.deform import pack_taps

        net = self.plain
        self._laterals = []
        for conv in net.lateral:
            assert isinstance(conv, nn.Conv2d) and conv.bias is not None
            self._laterals.append(_Layer(conv.weight[:, :, 0, 0].T.contiguous(), conv.bias.float()))
        self._outputs = [
            (_layer(out.offset), pack_taps(out.weight)) for out in net.output if isinstance(out, DeformConv2d)
        ]
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
        self._planes: dict[tuple[str, int], _Layer] = {}  # the same for a number of planes: kernels/planes.py

    def forward(
        self,
        volume: Tensor,  # [B, G, D, H, W]
        reference: Tensor | None = None,  # [B, C, H, W] features, for the context
    ) -> Tensor:  # logits [B, D, H, W]
        if not kernels.usable(volume):
            logits: Tensor = self.plain(volume, reference)
            return logits
        height, width = volume.shape[-2:]
        return self.leave(self.enter(volume, reference), height, width)

    def enter(self, volume: Tensor, reference: Tensor | None = None) -> Tensor:
        """The first layer, [B, G, D, H, W] -> [B, C, D, H', W']; after it nobody needs the volume."""
        height, width = volume.shape[-2:]
        padding = (0, -width % MULTIPLE, 0, -height % MULTIPLE)
        if any(padding):
            volume = F.pad(volume, padding)
        entered = self._conv("entry", volume)
        if self.plain.context is not None:
            assert reference is not None
            entered += F.pad(self._context(reference), padding)[:, :, None]
        return entered

    def _context(self, reference: Tensor) -> Tensor:
        """Features [B, C, H, W] -> what is added to every plane of the first layer, [B, w, H, W]."""
        from gbinet.kernels.conv import conv2d

        first, second = ((self._layers or self._pack())[f"context{i}"] for i in range(2))
        hidden = conv2d(reference, first.weight, first.bias)
        return conv2d(hidden, second.weight, second.bias, relu=False)

    def leave(self, entered: Tensor, height: int, width: int) -> Tensor:
        """All other layers, to logits [B, D, height, width]. What was entered is overwritten."""
        skips = [entered]
        del entered
        for level in range(3):
            halved = self._conv(f"down{level}.0", skips[-1], stride=2)
            skips.append(self._conv(f"down{level}.1", halved))
            del halved
        current = skips.pop()
        for level in range(3):
            current = self._up(f"up{level}", current, skips.pop())
        return self._conv("logit", current, relu=False)[:, 0, :, :height, :width]

    def _conv(self, name: str, x: Tensor, stride: int = 1, relu: bool = True) -> Tensor:
        from gbinet.kernels import conv, planes

        layer = (self._layers or self._pack())[name]
        outputs = layer.weight.shape[-1]
        if not planes.suits(x, outputs):
            return conv.conv3d(x, layer.weight, layer.bias, stride=stride, relu=relu)
        wide = self._for_planes(name, x.shape[2], transposed=False)
        return planes.conv3d(x, wide.weight, wide.bias, outputs, stride=stride, relu=relu)

    def _up(self, name: str, x: Tensor, skip: Tensor) -> Tensor:
        """skip + relu(transposed convolution of x), written over skip."""
        from gbinet.kernels import conv, planes

        layer = (self._layers or self._pack())[name]
        if not planes.suits(x, skip.shape[1], transposed=True):
            return conv.conv_transpose3d(x, layer.weight, layer.bias, skip=skip, into_skip=True)
        wide = self._for_planes(name, x.shape[2], transposed=True)
        return planes.conv_transpose3d_into(x, wide.weight, wide.bias, skip)

    def _for_planes(self, name: str, count: int, transposed: bool) -> _Layer:
        from gbinet.kernels import planes

        layer = (self._layers or self._pack())[name]
        if (name, count) not in self._planes:
            self._planes[name, count] = _Layer(*planes.pack(layer.weight, layer.bias, count, transposed))
        return self._planes[name, count]

    @torch.no_grad()
    def _pack(self) -> dict[str, _Layer]:
        net = self.plain
        blocks: dict[str, nn.Module] = {"entry": net.entry}
        for level, pair in enumerate(net.down):
            assert isinstance(pair, nn.Sequential)
            blocks |= {f"down{level}.0": pair[0], f"down{level}.1": pair[1]}
        blocks |= {f"up{level}": block for level, block in enumerate(net.up)}
        blocks |= {f"context{i}": block for i, block in enumerate(net.context or ())}
        self._layers = {name: _layer(block) for name, block in blocks.items()}
        self._layers["logit"] = _layer(net.logit)
        return self._layers


class FusedChooser(nn.Module):
    """Same function as the folded chooser that it is made from, for the GPU."""

    def __init__(self, folded: Chooser) -> None:
        super().__init__()
        self.plain = folded
        self._layers: list[tuple[_Layer, int]] | None = None  # entry and spread, with dilation
        self._output: _Layer | None = None

    def forward(self, volume: Tensor, reference: Tensor, cells: Tensor) -> Tensor:
        """As Chooser.forward."""
        if not kernels.usable(volume):
            logits: Tensor = self.plain(volume, reference, cells)
            return logits
        inputs = self.room(cells)
        matches = volume.permute(0, 3, 4, 2, 1).flatten(3)  # [B, H, W, PARENTS * G]
        inputs[..., : matches.shape[-1]] = matches
        return self.leave(inputs, reference, cells)

    def room(self, cells: Tensor) -> Tensor:
        """Memory for all inputs of pixels with these parents [B, PARENTS, H, W]: [B, H, W, I], how well they
        match first; `leave` writes the others. A multiple of 8 channels, so that rows are aligned."""
        weight = self.plain.entry.conv.weight
        batch, _, height, width = cells.shape
        return weight.new_empty(batch, height, width, -(-weight.shape[1] // 8) * 8)

    def leave(self, inputs: Tensor, reference: Tensor, cells: Tensor) -> Tensor:
        """Logits [B, PARENTS, H, W] from the memory that `room` made, with the matches in it."""
        from gbinet.kernels.conv import conv2d

        layers = self._layers or self._pack()
        assert self._output is not None
        channels = reference.shape[1]
        at = self.plain.entry.conv.in_channels - channels - (PARENTS - 1)
        inputs[..., at : at + channels] = reference.permute(0, 2, 3, 1)
        inputs[..., at + channels : at + channels + PARENTS - 1] = differences(cells).permute(0, 2, 3, 1)
        inputs[..., at + channels + PARENTS - 1 :] = 0
        (entry, _), *spread = layers
        hidden = conv2d(inputs.permute(0, 3, 1, 2), entry.weight, entry.bias)
        for layer, dilation in spread:
            hidden = conv2d(hidden, layer.weight, layer.bias, dilation=dilation, skip=hidden)
        return conv2d(hidden, self._output.weight, self._output.bias, relu=False, planar=True)

    @torch.no_grad()
    def _pack(self) -> list[tuple[_Layer, int]]:
        net = self.plain
        entry = _layer(net.entry)
        missing = -entry.weight.shape[-2] % 8
        entry = _Layer(F.pad(entry.weight, (0, 0, 0, missing)), entry.bias)
        spread = [block for block in net.spread if isinstance(block, ConvBlock2d)]
        self._layers = [(entry, 1), *((_layer(block), block.conv.dilation[0]) for block in spread)]
        self._output = _layer(net.output)
        return self._layers


def _layer(block: nn.Module) -> _Layer:
    from gbinet.kernels.conv import pack

    conv = block.conv if isinstance(block, ConvBlock2d | ConvBlock3d | UpBlock3d) else block
    assert isinstance(conv, nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d)
    transposed = isinstance(conv, nn.ConvTranspose3d)
    bias = conv.weight.new_zeros(1) if conv.bias is None else conv.bias
    return _Layer(pack(conv.weight, transposed), bias.float())
