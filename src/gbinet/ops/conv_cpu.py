"""Convolutions with few outputs on a CPU, without gradients: oneDNN would waste most of its vector width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet.ops.conv import UPSAMPLING_TAPS

FEW_OUTPUTS = 8  # up to here, one plain convolution is faster than four (see conv.py)


def conv3d_one_output(x: Tensor, layer: nn.Conv3d) -> Tensor:
    """A 3x3x3 convolution with one output, [B, I, D, H, W] -> [B, 1, D, H, W] float32.

    A 2D convolution with three outputs: what a plane adds to the one below, to itself and to the one above.
    """
    batch, _, depth, height, width = x.shape
    images = x.transpose(1, 2).flatten(0, 1)  # [B * D, I, H, W]
    taps = layer.weight[0].transpose(0, 1)  # [3, I, 3, 3]
    parts = torch.mkldnn_convolution(images, taps, None, (1, 1), (1, 1), (1, 1), 1)  # [B * D, 3, H, W]
    above, own, below = parts.float().view(batch, depth, 3, height, width).unbind(2)  # [B, D, H, W] each
    total: Tensor = own.clone()
    total[:, 1:] += above[:, :-1]
    total[:, :-1] += below[:, 1:]
    if layer.bias is not None:
        total += layer.bias
    return total[:, None]


def conv_transpose(volume: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """The transposed 3x3x3 convolution, [B, I, D, H, W] -> [B, O, D, 2 H, 2 W].

    As one plain convolution whose outputs are the four pixels that a voxel becomes; missing taps are zero.
    """
    batch, _, depth, height, width = volume.shape
    outputs = layer.out_channels
    weight = layer.weight.flip(2).transpose(0, 1)  # [O, I, 3, 3, 3]
    kernel = weight.new_zeros(2, 2, outputs, *weight.shape[1:3], 2, 2)  # [row, column, O, I, 3, taps, taps]
    for row, down in enumerate(UPSAMPLING_TAPS):
        for column, across in enumerate(UPSAMPLING_TAPS):
            kernel[row, column, ..., : len(down), : len(across)] = weight[:, :, :, down][..., across]
    bias = None if layer.bias is None else layer.bias.repeat(4)
    padded = F.pad(volume, (0, 1, 0, 1))
    result = torch.mkldnn_convolution(padded, kernel.flatten(0, 2), bias, (1, 0, 0), (1, 1, 1), (1, 1, 1), 1)
    rows = result.new_empty(batch, depth, height, 2, width, 2, outputs)
    pixels = result.view(batch, 2, 2, outputs, depth, height, width)
    rows.copy_(pixels.permute(0, 4, 5, 1, 6, 2, 3))
    return rows.view(batch, depth, 2 * height, 2 * width, outputs).permute(0, 4, 1, 2, 3)
