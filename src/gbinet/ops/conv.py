"""Convolutions with bias, ReLU and skip connection: 2D, 3D, and the transposed one that doubles a volume."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.inplace import add_into

# Taps of a doubling kernel, along one axis, that even and odd pixels see: on one voxel; on it and the next.
DOUBLING_TAPS = ([1], [2, 0])


@dataclass(frozen=True)
class Matrices:
    """A convolution as strips_triton.py reads it."""

    weights: Tensor  # [3, LOADS, KP, NP]: rows of taps, then planes and taps along a row that are read apart
    bias: Tensor  # [NP] float32
    inputs: int
    outputs: int
    planes: int  # worked on together
    taps: int
    depth_taps: int


@dataclass(frozen=True)
class Packed:
    """A convolution as the kernels read it."""

    weight: Tensor  # [kd, kh, kw, I, O]
    bias: Tensor  # [O] float32
    _filled: dict[int, Tensor] = field(default_factory=dict)  # weights by number of inputs
    _planes: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by number of planes
    _strips: dict[tuple[int, int], Matrices] = field(default_factory=dict)  # by numbers of inputs and planes
    _doubling: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # one, once it is asked for

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
            self._planes[count] = pack_planes(self.weight, self.bias, count)
        return self._planes[count]

    def of_strips(self, inputs: int, count: int) -> Matrices:
        """For volumes with so many channels and planes: strips_triton.py."""
        from gbinet.ops.strips_triton import pack as pack_strips

        if (inputs, count) not in self._strips:
            self._strips[inputs, count] = pack_strips(self.of_inputs(inputs), self.bias, count)
        return self._strips[inputs, count]

    def of_doubling(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of four pixels: double_triton.py."""
        from gbinet.ops.double_triton import pack as pack_doubling

        if not self._doubling:
            self._doubling.append(pack_doubling(self.weight, self.bias))
        return self._doubling[0]


def conv(
    x: Tensor,  # [B, I, (D,) H, W]; more channels than the layer has inputs are as if they were zero
    layer: nn.Conv2d | nn.Conv3d,  # with 'same' padding
    packed: Packed | None = None,  # the same for the kernels
    *,
    relu: bool = False,
    skip: Tensor | None = None,  # [B, O, (D or 1,) h, w], added after the ReLU
    planar: bool = False,  # of images, no skip: the kernels' result is contiguous, not channels last
) -> Tensor:  # [B, O, (D,) h, w]
    """layer(x), ReLU, addition of the skip connection; one pass where the layer is packed."""
    if packed is None or not ops.usable(x):
        return _finished(_conv_of_layer(x, layer), relu, skip)
    if x.dim() == 4:
        skip = None if skip is None else skip[:, :, None]
        return _of_kernels(x[:, :, None], layer, packed, relu, skip, planar)[:, :, 0]
    return _of_kernels(x, layer, packed, relu, skip)


def _of_kernels(
    x: Tensor,  # [B, I, D, H, W]
    layer: nn.Conv2d | nn.Conv3d,
    packed: Packed,
    relu: bool,
    skip: Tensor | None,
    planar: bool = False,
) -> Tensor:  # [B, O, D, h, w]
    from gbinet.ops import conv_triton, planes_triton, strips_triton

    stride, dilation, outputs = layer.stride[-1], layer.dilation[-1], layer.out_channels
    weight, planes = packed.of_inputs(x.shape[1]), x.shape[2]
    if strips_triton.suits(x, weight, stride):
        matrices = packed.of_strips(x.shape[1], planes)
        return strips_triton.conv(x, matrices, dilation=dilation, relu=relu, skip=skip, planar=planar)
    if skip is not None and skip.shape[2] != planes:
        return add_into(_of_kernels(x, layer, packed, relu, None), skip)
    if weight.shape[0] == 3 and skip is None and planes_triton.suits(x, outputs):
        matrix, bias = packed.of_planes(planes)
        return planes_triton.conv3d(x, matrix, bias, outputs, stride=stride, relu=relu)
    return conv_triton.conv3d(
        x, weight, packed.bias, stride=stride, dilation=dilation, relu=relu, skip=skip, planar=planar
    )


def _conv_of_layer(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """The convolution alone: in training by the kernels where they serve."""
    from gbinet.ops import conv_training

    x = x if x.shape[1] == layer.in_channels else x[:, : layer.in_channels]
    return conv_training.conv(x, layer) if conv_training.suits(x, layer) else conv_plain(x, layer)


def doubled(x: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """layer(x) alone, [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]: in training by the kernels where they serve."""
    from gbinet.ops import conv_training

    return conv_training.doubled(x, layer) if conv_training.suits(x, layer) else doubled_plain(x, layer)


def double(x: Tensor, layer: nn.ConvTranspose3d, packed: Packed | None, skip: Tensor) -> Tensor:
    """skip + relu(layer(x)), [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]; the kernels write it over skip."""
    if packed is None or not ops.usable(x):
        return _finished(doubled_plain(x, layer), True, skip)
    from gbinet.ops import conv_triton, double_triton

    if double_triton.suits(x, layer.out_channels):
        return double_triton.double_into(x, *packed.of_doubling(), skip)
    return conv_triton.conv_transpose3d_into(x, packed.weight, packed.bias, skip)


@torch.no_grad()
def pack(layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d) -> Packed | None:
    """A layer whose batch norm is folded, as the kernels read it; None where they do not serve."""
    weight = layer.weight
    if not ops.usable(weight) or (weight.dim() == 5 and weight.shape[-1] == 1):
        return None  # 3D kernels of one voxel are products of matrices, which torch does well
    transposed = isinstance(layer, nn.ConvTranspose3d)
    bias = weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
    return Packed(packed_weight(weight, transposed), bias.float())


def packed_weight(weight: Tensor, transposed: bool = False) -> Tensor:
    """[O, I, (k,) k, k] (transposed convolution: [I, O, 3, 3, 3]) -> [kd, kh, kw, I, O]."""
    if weight.dim() == 4:
        weight = weight[:, :, None]
    order = (2, 3, 4, 0, 1) if transposed else (2, 3, 4, 1, 0)
    return weight.permute(order).contiguous()


def _finished(result: Tensor, relu: bool, skip: Tensor | None) -> Tensor:
    if relu:  # not over a view of what has its own gradient
        result = F.relu(result) if result._is_view() else F.relu_(result)
    return result if skip is None else add_into(result, skip)


def conv_plain(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """The convolution alone, by torch."""
    if _is_small_product(x, layer):
        return F.linear(x.movedim(1, -1), layer.weight.flatten(1), layer.bias).movedim(-1, 1)
    if not onednn_suits(x, layer.weight):
        result: Tensor = layer._conv_forward(x, layer.weight, layer.bias)
        return result
    assert not isinstance(layer.padding, str)
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = x.contiguous(memory_format=layouts[x.dim()])  # in which oneDNN is quickest
    if isinstance(layer, nn.Conv3d) and layer.out_channels == 1 and ops.usable_on_cpu(x):
        from gbinet.ops import conv_cpu

        if layer.kernel_size == (3, 3, 3) and layer.stride == (1, 1, 1):
            return conv_cpu.planes(x, layer)
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
    if ops.usable_on_cpu(volume):
        from gbinet.ops import conv_cpu

        if layer.out_channels <= conv_cpu.FEW:
            return conv_cpu.doubled(volume, layer)
    # Rows and columns of one parity see fixed taps of the kernel: four plain convolutions, interleaved.
    weight = layer.weight.flip(2).transpose(0, 1)  # [O, I, 3, 3, 3]
    batch, _, bins, height, width = volume.shape
    rows = volume.new_empty(batch, bins, 2 * height, 2 * width, layer.out_channels)
    output = rows.permute(0, 4, 1, 2, 3)
    padded = F.pad(volume, (0, 1, 0, 1))
    for a, down in enumerate(DOUBLING_TAPS):
        for b, across in enumerate(DOUBLING_TAPS):
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
        and volume.dtype == weight.dtype
        and max(weight.shape[2:]) > 1
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and (volume.dtype == torch.float32 or (volume.dtype == torch.bfloat16 and _onednn_has_bfloat16()))
        and not torch.is_autocast_enabled("cpu")
    )


@functools.cache
def _onednn_has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
