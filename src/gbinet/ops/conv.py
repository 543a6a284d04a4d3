"""Convolutions with bias, ReLU and skip connection: 2D, 3D, and the transposed one that doubles a volume."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.inplace import add_into


@dataclass(frozen=True)
class Packed:
    """A convolution as the kernels read it."""

    weight: Tensor  # [kd, kh, kw, I, O]
    bias: Tensor  # [O] float32
    transposed: bool
    _filled: dict[int, Tensor] = field(default_factory=dict)  # weights by number of inputs
    _planes: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by number of planes

    def of_inputs(self, inputs: int) -> Tensor:
        """The weight for maps with more channels than the layer has inputs, for which it is zero."""
        missing = inputs - self.weight.shape[-2]
        if not missing:
            return self.weight
        if inputs not in self._filled:
            self._filled[inputs] = F.pad(self.weight, (0, 0, 0, missing))
        return self._filled[inputs]

    def of_planes(self, count: int) -> tuple[Tensor, Tensor]:
        """Weight and bias for volumes with so many planes: planes_triton.py."""
        from gbinet.ops.planes_triton import pack as pack_planes

        if count not in self._planes:
            self._planes[count] = pack_planes(self.weight, self.bias, count, self.transposed)
        return self._planes[count]


def conv(
    x: Tensor,  # [B, I, (D,) H, W]; more channels than the layer has inputs are as if they were zero
    layer: nn.Conv2d | nn.Conv3d,  # with 'same' padding
    packed: Packed | None = None,  # the same for the kernels
    *,
    relu: bool = False,
    skip: Tensor | None = None,  # [B, O, (D,) h, w], added after the ReLU
    planar: bool = False,  # of images, no skip: the kernels' result is contiguous, not channels last
) -> Tensor:  # [B, O, (D,) h, w]
    """layer(x), ReLU, addition of the skip connection; one pass where the layer is packed."""
    if packed is None or not ops.usable(x):
        return _finished(conv_plain(x, layer), relu, skip)
    from gbinet.ops import conv_triton, planes_triton

    stride, outputs = layer.stride[-1], layer.out_channels
    if x.dim() == 5 and skip is None and planes_triton.suits(x, outputs):
        matrix, bias = packed.of_planes(x.shape[2])
        return planes_triton.conv3d(x, matrix, bias, outputs, stride=stride, relu=relu)
    flat = x.dim() == 4
    result = conv_triton.conv3d(
        x[:, :, None] if flat else x, packed.of_inputs(x.shape[1]), packed.bias, stride=stride,
        dilation=layer.dilation[-1], relu=relu, skip=skip[:, :, None] if flat and skip is not None else skip,
        planar=planar,
    )  # fmt: skip
    return result[:, :, 0] if flat else result


def double(x: Tensor, layer: nn.ConvTranspose3d, packed: Packed | None, skip: Tensor) -> Tensor:
    """skip + relu(layer(x)), [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]; the kernels write it over skip."""
    if packed is None or not ops.usable(x):
        return _finished(doubled_plain(x, layer), True, skip)
    from gbinet.ops import conv_triton, planes_triton

    if planes_triton.suits(x, layer.out_channels, transposed=True):
        return planes_triton.conv_transpose3d_into(x, *packed.of_planes(x.shape[2]), skip)
    return conv_triton.conv_transpose3d_into(x, packed.weight, packed.bias, skip)


@torch.no_grad()
def pack(layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d) -> Packed | None:
    """A layer whose batch norm is folded, as the kernels read it; None where they do not serve."""
    weight = layer.weight
    if not ops.usable(weight) or (weight.dim() == 5 and weight.shape[-1] == 1):
        return None  # 3D kernels of one voxel are products of matrices, which torch does well
    transposed = isinstance(layer, nn.ConvTranspose3d)
    bias = weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
    return Packed(packed_weight(weight, transposed), bias.float(), transposed)


def packed_weight(weight: Tensor, transposed: bool = False) -> Tensor:
    """[O, I, (k,) k, k] (transposed convolution: [I, O, 3, 3, 3]) -> [kd, kh, kw, I, O]."""
    if weight.dim() == 4:
        weight = weight[:, :, None]
    order = (2, 3, 4, 0, 1) if transposed else (2, 3, 4, 1, 0)
    return weight.permute(order).contiguous()


def _finished(result: Tensor, relu: bool, skip: Tensor | None) -> Tensor:
    result = F.relu_(result) if relu else result
    return result if skip is None else add_into(result, skip)


def conv_plain(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """The convolution alone, by torch."""
    inputs = layer.in_channels
    x = x if x.shape[1] == inputs else x[:, :inputs]
    if _is_small_product(x, layer):
        return F.linear(x.movedim(1, -1), layer.weight.flatten(1), layer.bias).movedim(-1, 1)
    if isinstance(layer, nn.Conv2d) or not onednn_suits(x, layer.weight):
        result: Tensor = layer._conv_forward(x, layer.weight, layer.bias)
        return result
    assert not isinstance(layer.padding, str)
    output: Tensor = torch.mkldnn_convolution(
        x, layer.weight, layer.bias, layer.padding, layer.stride, layer.dilation, layer.groups
    )
    return output


def _is_small_product(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> bool:
    """Whether to multiply matrices: with so few outputs, oneDNN's 1x1 convolution of an image adds up in an
    order that depends on the number of threads."""
    return (
        isinstance(layer, nn.Conv2d)
        and x.device.type == "cpu"
        and layer.kernel_size == layer.stride == (1, 1)
        and layer.out_channels < 8
        and layer.groups == 1
        and layer.padding == (0, 0)
    )


def doubled_plain(volume: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """The transposed 3x3x3 convolution alone, by torch: [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]."""
    if not onednn_suits(volume, layer.weight):
        return nn.ConvTranspose3d.forward(layer, volume)
    # Rows and columns of one parity see fixed taps of the kernel: four plain convolutions, interleaved.
    weight = layer.weight.flip(2).transpose(0, 1)  # [O, I, 3, 3, 3]
    even, odd = [1], [2, 0]  # taps on one voxel, and on it and the next
    batch, _, bins, height, width = volume.shape
    rows = volume.new_empty(batch, bins, 2 * height, 2 * width, layer.out_channels)
    output = rows.permute(0, 4, 1, 2, 3)
    padded = F.pad(volume, (0, 1, 0, 1))
    for a, down in enumerate((even, odd)):
        for b, across in enumerate((even, odd)):
            window = padded[..., : height + a, : width + b]
            kernel = weight[:, :, :, down][..., across]
            output[..., a::2, b::2] = torch.mkldnn_convolution(
                window, kernel, layer.bias, (1, 0, 0), (1, 1, 1), (1, 1, 1), 1
            )
    return output


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
