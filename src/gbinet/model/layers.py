"""Building blocks: convolution, batch norm, ReLU, in 2D and 3D."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import kernels


def onednn_suits(volume: Tensor, weight: Tensor) -> bool:
    """Whether to ask for oneDNN by name.

    For one volume of few channels on a CPU, torch 2.13 picks algorithms 3 to 10 times slower than oneDNN's.
    Kernels of one voxel are products of matrices, for which torch's choice is right.
    """
    return (
        volume.device.type == "cpu"
        and volume.dtype == weight.dtype == torch.float32
        and max(weight.shape[2:]) > 1
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and not torch.is_autocast_enabled("cpu")
    )


class Conv3d(nn.Conv3d):
    """A 3D convolution that is quick on CPUs too: same numbers up to rounding, same gradients."""

    def forward(self, volume: Tensor) -> Tensor:  # [B, I, D, H, W] -> [B, O, D, H', W']
        if not onednn_suits(volume, self.weight):
            return super().forward(volume)
        assert not isinstance(self.padding, str)
        output: Tensor = torch.mkldnn_convolution(
            volume, self.weight, self.bias, self.padding, self.stride, self.dilation, self.groups
        )
        return output


class DoublingConv3d(nn.ConvTranspose3d):
    """Transposed 3x3x3 convolution that doubles height and width, quick on CPUs too."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, (1, 2, 2), padding=1, output_padding=(0, 1, 1), bias=False)

    def forward(self, volume: Tensor, output_size: list[int] | None = None) -> Tensor:
        """[B, I, D, H, W] -> [B, O, D, 2 H, 2 W]."""
        if not onednn_suits(volume, self.weight):
            return super().forward(volume, output_size)
        # Rows and columns of one parity see fixed taps of the kernel: four plain convolutions, interleaved.
        weight = self.weight.flip(2).transpose(0, 1)  # [O, I, 3, 3, 3]
        even, odd = [1], [2, 0]  # taps on one voxel, and on it and the next
        batch, _, bins, height, width = volume.shape
        output = volume.new_empty(batch, bins, 2 * height, 2 * width, self.out_channels).permute(
            0, 4, 1, 2, 3
        )
        padded = F.pad(volume, (0, 1, 0, 1))
        for a, rows in enumerate((even, odd)):
            for b, columns in enumerate((even, odd)):
                window = padded[..., : height + a, : width + b]
                kernel = weight[:, :, :, rows][..., columns]
                output[..., a::2, b::2] = torch.mkldnn_convolution(
                    window, kernel, self.bias, (1, 0, 0), (1, 1, 1), (1, 1, 1), 1
                )
        return output


def norm_relu(values: Tensor, norm: nn.Module) -> Tensor:
    """relu(norm(values)); in training a batch norm's statistics are those of `values`."""
    if norm.training and kernels.usable(values):
        from gbinet.kernels import norm as fast

        if fast.supported(norm):
            return fast.norm_relu(values, norm)  # type: ignore[arg-type]  # a batch norm, says supported
    return norm_relu_plain(values, norm)


def norm_relu_plain(values: Tensor, norm: nn.Module) -> Tensor:
    """The reference of norm_relu."""
    return F.relu_(norm(values))


class ConvBlock2d(nn.Sequential):
    """2D convolution without bias, batch norm, ReLU; 'same' padding."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, input: Tensor) -> Tensor:  # [B, I, H, W] -> [B, O, H', W']
        return norm_relu(self.conv(input), self.norm)


class ConvBlock3d(nn.Sequential):
    """3D convolution without bias, batch norm, ReLU; 'same' padding; strides in space only."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = Conv3d(inputs, outputs, kernel, (1, stride, stride), padding=kernel // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm3d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, input: Tensor) -> Tensor:  # [B, I, D, H, W] -> [B, O, D, H', W']
        return norm_relu(self.conv(input), self.norm)


class UpBlock3d(nn.Sequential):
    """Transposed 3D convolution that doubles height and width, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = DoublingConv3d(inputs, outputs)
        self.norm: nn.Module = nn.BatchNorm3d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, input: Tensor) -> Tensor:  # [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]
        return norm_relu(self.conv(input), self.norm)


def add_into(target: Tensor, other: Tensor) -> Tensor:
    """target + other, in place when no gradient needs target."""
    return target + other if target.requires_grad else target.add_(other)


def multiply_into(target: Tensor, other: Tensor) -> Tensor:
    """target * other, in place when no gradient needs target."""
    return target * other if torch.is_grad_enabled() else target.mul_(other)
