"""Building blocks: convolution, batch norm, ReLU, in 2D and 3D."""

from __future__ import annotations

from torch import Tensor, nn


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
        self.conv = nn.Conv3d(inputs, outputs, kernel, (1, stride, stride), padding=kernel // 2, bias=False)
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
