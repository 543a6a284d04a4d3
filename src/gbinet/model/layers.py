"""Building blocks: convolution, batch norm, ReLU, in 2D and 3D."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Conv3d(nn.Conv3d):
    """A 3D convolution that is quick on CPUs too.

    For one volume of few channels, torch 2.13 picks a CPU algorithm 5 to 10 times slower than oneDNN's, which
    this asks for by name (same numbers up to rounding, same gradients). Kernels of one voxel are products of
    matrices, for which torch's choice is right.
    """

    def forward(self, volume: Tensor) -> Tensor:  # [B, I, D, H, W] -> [B, O, D, H', W']
        if not self._onednn(volume):
            return super().forward(volume)
        assert not isinstance(self.padding, str)
        output: Tensor = torch.mkldnn_convolution(
            volume, self.weight, self.bias, self.padding, self.stride, self.dilation, self.groups
        )
        return output

    def _onednn(self, volume: Tensor) -> bool:
        return (
            volume.device.type == "cpu"
            and volume.dtype == self.weight.dtype == torch.float32
            and max(self.kernel_size) > 1
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            and not torch.is_autocast_enabled("cpu")
        )


class ConvBlock2d(nn.Sequential):
    """2D convolution without bias, batch norm, ReLU; 'same' padding."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)


class ConvBlock3d(nn.Sequential):
    """3D convolution without bias, batch norm, ReLU; 'same' padding; strides in space only."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = Conv3d(inputs, outputs, kernel, (1, stride, stride), padding=kernel // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm3d(outputs)
        self.relu = nn.ReLU(inplace=True)


class UpBlock3d(nn.Sequential):
    """Transposed 3D convolution that doubles height and width, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(
            inputs, outputs, 3, (1, 2, 2), padding=1, output_padding=(0, 1, 1), bias=False
        )
        self.norm: nn.Module = nn.BatchNorm3d(outputs)
        self.relu = nn.ReLU(inplace=True)


def add_into(target: Tensor, other: Tensor) -> Tensor:
    """target + other, in place when no gradient needs target."""
    return target + other if target.requires_grad else target.add_(other)
