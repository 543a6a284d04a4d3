"""Deformable convolution on a CPU, without gradients: all channels of a sample are read at once."""

from __future__ import annotations

from torch import Tensor

from gbinet.camera import pixel_centres
from gbinet.ops.bilinear_cpu import BORDER, RowTable, sample, table
from gbinet.ops.threads_cpu import in_bands

BAND_PIXELS = 1 << 15  # worked on at a time: intermediate results stay in the cache


def deform_conv2d(
    features: Tensor,  # [B, C, H, W]
    offsets: Tensor,  # [B, 18, H, W]: (dy, dx) per tap
    weight: Tensor,  # [O, C, 3, 3]
    out: Tensor,  # [B, O, H, W]: the result is written there
) -> None:
    height, width = features.shape[-2:]
    taps = weight.permute(2, 3, 0, 1).flatten(0, 1).float().contiguous()  # [9, O, C]
    centres = pixel_centres(height, width) + BORDER  # [H, W, 2]
    for image, shifts, target in zip(features, offsets, out, strict=True):
        source = table(image)

        def work(
            band: slice, shifts: Tensor = shifts, target: Tensor = target, source: RowTable = source
        ) -> None:
            x, y = centres[band].unbind(-1)  # [h, W] each
            result = taps.new_zeros(len(weight), x.numel())  # [O, h * W]
            for tap, matrix in enumerate(taps):
                column = (x + (tap % 3 - 1)).add_(shifts[2 * tap + 1, band])
                row = (y + (tap // 3 - 1)).add_(shifts[2 * tap, band])
                sampled = sample(source, column.flatten(), row.flatten())  # [h * W, C]
                result.addmm_(matrix, sampled.T)
            target[:, band] = result.view(-1, *x.shape)

        in_bands(work, height, max(1, BAND_PIXELS // width))
