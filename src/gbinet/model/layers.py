"""Building blocks: convolution, batch norm, ReLU, in 2D and 3D.

For inference, batch norms are folded into their convolutions and convolutions are packed for the kernels
(inference/prepare.py): the same layers then take one pass over memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbinet.errors import InputError
from gbinet.ops import conv as conv_ops
from gbinet.ops import deform
from gbinet.ops.conv import Packed, conv, conv_transpose, conv_transpose_relu_add
from gbinet.ops.inplace import add_into
from gbinet.ops.norm import norm_relu


class Conv2d(nn.Conv2d):
    """A 2D convolution with 'same' padding that can be packed."""

    packed: Packed | None = None
    planar: bool = False  # if packed, the result is contiguous, not channels last

    def forward(self, input: Tensor, relu: bool = False, skip: Tensor | None = None) -> Tensor:
        """[B, I, H, W] -> [B, O, H', W']; skip [B, O, H', W'] is added after the ReLU."""
        return conv(input, self, self.packed, relu=relu, skip=skip, planar=self.planar)


class PlanarConv2d(Conv2d):
    """A Conv2d whose results are read map by map."""

    planar = True


class Conv3d(nn.Conv3d):
    """A 3D convolution that is also fast on CPUs, and can be packed."""

    packed: Packed | None = None

    def forward(self, input: Tensor) -> Tensor:  # [B, I, D, H, W] -> [B, O, D, H', W']
        return conv(input, self, self.packed)


class ConvTranspose3d(nn.ConvTranspose3d):
    """Transposed 3x3x3 convolution that doubles height and width; also fast on CPUs, and can be packed."""

    packed: Packed | None = None

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, (1, 2, 2), padding=1, output_padding=(0, 1, 1), bias=False)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """[B, I, D, H, W] -> [B, O, D, 2 H, 2 W]."""
        return conv_transpose(input, self)


class DeformConv2d(nn.Module):
    """Deformable convolution with its own offset predictor (a plain 3x3 convolution that starts at zero)."""

    packed: Tensor | None = None

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        self.offset = PlanarConv2d(inputs, 18, 3, padding=1)
        nn.init.zeros_(self.offset.weight)
        assert self.offset.bias is not None
        nn.init.zeros_(self.offset.bias)

    def forward(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """[B, C, H, W] -> [B, O, H, W], written to `out` if given (memory of ops.deform.empty_output)."""
        return deform.deform_conv2d(features, self.offset(features), self.weight, self.packed, out)


def pack(module: nn.Module) -> None:
    """Pack all layers of a module for the kernels, where these can be used."""
    for layer in module.modules():
        if isinstance(layer, Conv2d | Conv3d | ConvTranspose3d):
            layer.packed = conv_ops.pack(layer)
        elif isinstance(layer, DeformConv2d):
            layer.packed = deform.pack(layer.weight)


class Block(nn.Sequential):
    """Convolution without bias, batch norm, ReLU."""

    conv: Conv2d | Conv3d | ConvTranspose3d
    norm: nn.Module  # nn.Identity once it is folded

    @property
    def folded(self) -> bool:
        return isinstance(self.norm, nn.Identity)

    @torch.no_grad()
    def fold(self) -> None:
        """Merge the batch norm, as it is in eval mode, into the convolution."""
        if not isinstance(self.norm, nn.BatchNorm2d | nn.BatchNorm3d):
            return  # it is folded already
        scale, shift = scale_and_shift(self.norm)
        shape = [1] * self.conv.weight.dim()
        shape[1 if isinstance(self.conv, nn.ConvTranspose3d) else 0] = -1
        self.conv.weight = nn.Parameter(self.conv.weight * scale.reshape(shape))
        self.conv.bias = nn.Parameter(shift)
        self.norm = nn.Identity()

    def forward(self, input: Tensor, skip: Tensor | None = None) -> Tensor:
        """[B, I, ...] -> [B, O, ...]; skip [B, O, ...] is added after the ReLU."""
        if self.folded and isinstance(self.conv, Conv2d | Conv3d):
            return conv(input, self.conv, self.conv.packed, relu=True, skip=skip)
        result = norm_relu(self.conv(input), self.norm)
        return result if skip is None else add_into(result, skip)


def scale_and_shift(norm: nn.BatchNorm2d | nn.BatchNorm3d) -> tuple[Tensor, Tensor]:
    """A batch norm in eval mode is x * scale + shift per channel, [C] each."""
    if norm.running_mean is None or norm.running_var is None:
        raise InputError("this batch norm keeps no running statistics and cannot be folded")
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return scale, norm.bias - norm.running_mean * scale


class ConvBlock2d(Block):
    """In 2D; 'same' padding."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.conv = Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)


class ConvBlock3d(Block):
    """In 3D; 'same' padding; strides in space only."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = Conv3d(inputs, outputs, kernel, (1, stride, stride), padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm3d(outputs)
        self.relu = nn.ReLU(inplace=True)


class UpBlock3d(Block):
    """In 3D, transposed: doubles height and width."""

    conv: ConvTranspose3d

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = ConvTranspose3d(inputs, outputs)
        self.norm = nn.BatchNorm3d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, input: Tensor, skip: Tensor | None = None) -> Tensor:
        """[B, I, D, H, W] -> [B, O, D, 2 H, 2 W]; skip is added after the ReLU, and may be overwritten."""
        if self.folded and skip is not None:
            return conv_transpose_relu_add(input, self.conv, self.conv.packed, skip)
        return super().forward(input, skip)
