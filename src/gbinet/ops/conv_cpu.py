"""Convolutions on a CPU, without gradients, where oneDNN wastes most of its width: on few outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet.ops.conv import DOUBLING_TAPS

FEW = 8  # outputs that a transposed convolution makes of all its taps at once


def planes(x: Tensor, layer: nn.Conv3d) -> Tensor:
    """A 3x3x3 convolution with one output, as one of images with three: [B, I, D, H, W] -> [B, 1, D, H, W]
    float32.

    What a plane gives to the one below, to itself and to the one above, then their sums.
    """
    batch, _, depth, height, width = x.shape
    images = x.transpose(1, 2).flatten(0, 1)  # [B * D, I, H, W]
    taps = layer.weight[0].transpose(0, 1)  # [3, I, 3, 3]
    given = torch.mkldnn_convolution(images, taps, None, (1, 1), (1, 1), (1, 1), 1)  # [B * D, 3, H, W]
    above, own, below = given.float().view(batch, depth, 3, height, width).unbind(2)  # [B, D, H, W] each
    total: Tensor = own.clone()
    total[:, 1:] += above[:, :-1]
    total[:, :-1] += below[:, 1:]
    if layer.bias is not None:
        total += layer.bias
    return total[:, None]


def doubled(volume: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """The transposed 3x3x3 convolution, [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]: the four pixels that a voxel
    becomes are outputs of one convolution, whose missing taps are zero."""
    batch, _, depth, height, width = volume.shape
    outputs = layer.out_channels
    own = layer.weight.flip(2).transpose(0, 1)  # [O, I, 3, 3, 3]
    kernel = own.new_zeros(2, 2, outputs, *own.shape[1:3], 2, 2)  # row and column of the pixel; of the tap
    for row, down in enumerate(DOUBLING_TAPS):
        for column, across in enumerate(DOUBLING_TAPS):
            kernel[row, column, ..., : len(down), : len(across)] = own[:, :, :, down][..., across]
    bias = None if layer.bias is None else layer.bias.repeat(4)
    padded = F.pad(volume, (0, 1, 0, 1))
    made = torch.mkldnn_convolution(padded, kernel.flatten(0, 2), bias, (1, 0, 0), (1, 1, 1), (1, 1, 1), 1)
    rows = made.new_empty(batch, depth, height, 2, width, 2, outputs)
    pixels = made.view(batch, 2, 2, outputs, depth, height, width)
    rows.copy_(pixels.permute(0, 4, 5, 1, 6, 2, 3))
    return rows.view(batch, depth, 2 * height, 2 * width, outputs).permute(0, 4, 1, 2, 3)
