"""Convolutions with bias, ReLU and skip connection: 2D, 3D, and transposed (doubles height and width)."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gbinet import ops
from gbinet.ops.inplace import add_into
from gbinet.ops.layout import channels_last

# Taps of the transposed convolution, along one axis, that make the even outputs (from one voxel) and the odd
# ones (from that voxel and the next).
UPSAMPLING_TAPS = ([1], [2, 0])


@dataclass(frozen=True)
class StripWeights:
    """A convolution as conv_strips_triton.py reads it; KP and NP are padded sizes of a matrix product."""

    weights: Tensor  # [3, LOADS, KP, NP]: rows of taps, then planes and taps along a row that are read apart
    bias: Tensor  # [NP] float32
    inputs: int
    outputs: int
    planes: int  # that one matrix product takes
    taps: int  # along a row that one matrix product takes, 1 or 3
    depth_taps: int  # 1 or 3


@dataclass(frozen=True)
class Packed:
    """A convolution as the kernels read it, and other layouts of it, made when first asked for."""

    weight: Tensor  # [kd, kh, kw, I, O]
    bias: Tensor  # [O] float32
    _padded: dict[int, Tensor] = field(default_factory=dict)  # by number of inputs
    _planes: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by number of planes
    _strips: dict[tuple[int, int], StripWeights] = field(default_factory=dict)  # by inputs and planes

    def for_inputs(self, inputs: int) -> Tensor:
        """The weight for maps with more channels than the layer has inputs: zero for these."""
        missing = inputs - self.weight.shape[-2]
        if not missing:
            return self.weight
        if inputs not in self._padded:
            self._padded[inputs] = F.pad(self.weight, (0, 0, 0, missing))
        return self._padded[inputs]

    def for_planes(self, count: int) -> tuple[Tensor, Tensor]:
        """Weight and bias for volumes of `count` planes, as conv_planes_triton.py reads them."""
        from gbinet.ops.conv_planes_triton import pack as pack_planes

        if count not in self._planes:
            self._planes[count] = pack_planes(self.weight, self.bias, count)
        return self._planes[count]

    def for_strips(self, inputs: int, count: int) -> StripWeights:
        """For volumes of `inputs` channels and `count` planes, as conv_strips_triton.py reads them."""
        from gbinet.ops.conv_strips_triton import pack as pack_strips

        if (inputs, count) not in self._strips:
            self._strips[inputs, count] = pack_strips(self.for_inputs(inputs), self.bias, count)
        return self._strips[inputs, count]

    @functools.cached_property
    def for_transpose(self) -> tuple[Tensor, Tensor]:
        """Weight and bias as conv_transpose_triton.py reads them."""
        from gbinet.ops.conv_transpose_triton import pack as pack_transpose

        return pack_transpose(self.weight, self.bias)


def conv(
    x: Tensor,  # [B, I, (D,) H, W]; channels beyond the layer's inputs are ignored
    layer: nn.Conv2d | nn.Conv3d,  # with 'same' padding
    packed: Packed | None = None,  # the layer as the kernels read it
    *,
    relu: bool = False,
    skip: Tensor | None = None,  # [B, O, (D or 1,) h, w], added after the ReLU
    planar: bool = False,  # images without skip only: the kernels' result is contiguous, not channels last
) -> Tensor:  # [B, O, (D,) h, w]
    """layer(x), ReLU, addition of the skip connection; one pass where the layer is packed."""
    if packed is None or not ops.usable(x):
        return _relu_add(_conv_only(x, layer), relu, skip)
    if x.dim() == 4:
        skip = None if skip is None else skip[:, :, None]
        return _conv_packed(x[:, :, None], layer, packed, relu, skip, planar)[:, :, 0]
    return _conv_packed(x, layer, packed, relu, skip)


def _conv_packed(
    x: Tensor,  # [B, I, D, H, W]
    layer: nn.Conv2d | nn.Conv3d,
    packed: Packed,
    relu: bool,
    skip: Tensor | None,
    planar: bool = False,
) -> Tensor:  # [B, O, D, h, w]
    from gbinet.ops import conv_planes_triton, conv_strips_triton, conv_triton

    stride, dilation, outputs = layer.stride[-1], layer.dilation[-1], layer.out_channels
    weight, planes = packed.for_inputs(x.shape[1]), x.shape[2]
    if conv_strips_triton.suits(x, weight, stride):
        matrices = packed.for_strips(x.shape[1], planes)
        return conv_strips_triton.conv(x, matrices, dilation=dilation, relu=relu, skip=skip, planar=planar)
    if skip is not None and skip.shape[2] != planes:
        return add_into(_conv_packed(x, layer, packed, relu, None), skip)
    if weight.shape[0] == 3 and skip is None and conv_planes_triton.suits(x, outputs):
        matrix, bias = packed.for_planes(planes)
        return conv_planes_triton.conv3d(x, matrix, bias, outputs, stride=stride, relu=relu)
    return conv_triton.conv3d(
        x, weight, packed.bias, stride=stride, dilation=dilation, relu=relu, skip=skip, planar=planar
    )


def _conv_only(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """layer(x), without ReLU and skip connection: in training by the kernels where they suit it."""
    from gbinet.ops import conv_training

    x = x if x.shape[1] == layer.in_channels else x[:, : layer.in_channels]
    return conv_training.conv(x, layer) if conv_training.suits(x, layer) else conv_plain(x, layer)


def conv_transpose(x: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """layer(x), [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]: in training by the kernels where they suit it."""
    from gbinet.ops import conv_training

    if conv_training.suits(x, layer):
        return conv_training.conv_transpose(x, layer)
    return conv_transpose_plain(x, layer)


def conv_transpose_relu_add(
    x: Tensor,  # [B, I, D, H, W]
    layer: nn.ConvTranspose3d,
    packed: Packed | None,  # the layer as the kernels read it
    skip: Tensor,  # [B, O, D, 2 H, 2 W]; may be overwritten
) -> Tensor:  # [B, O, D, 2 H, 2 W]
    """skip + relu(layer(x))."""
    if packed is None or not ops.usable(x):
        return _relu_add(conv_transpose_plain(x, layer), True, skip)
    from gbinet.ops import conv_transpose_triton, conv_triton

    if conv_transpose_triton.suits(x, layer.out_channels):
        return conv_transpose_triton.conv_transpose3d_into(x, *packed.for_transpose, skip)
    return conv_triton.conv_transpose3d_into(x, packed.weight, packed.bias, skip)


@torch.no_grad()
def pack(layer: nn.Conv2d | nn.Conv3d | nn.ConvTranspose3d) -> Packed | None:
    """A layer whose batch norm is folded, as the kernels read it; None where they cannot be used."""
    weight = layer.weight
    if not ops.usable(weight) or (weight.dim() == 5 and weight.shape[-1] == 1):
        return None  # 1x1x1 convolutions are matrix products, which torch does well
    transposed = isinstance(layer, nn.ConvTranspose3d)
    bias = weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
    return Packed(packed_weight(weight, transposed), bias.float())


def packed_weight(weight: Tensor, transposed: bool = False) -> Tensor:
    """[O, I, (k,) k, k] (transposed convolution: [I, O, 3, 3, 3]) -> [kd, kh, kw, I, O]."""
    if weight.dim() == 4:
        weight = weight[:, :, None]
    order = (2, 3, 4, 0, 1) if transposed else (2, 3, 4, 1, 0)
    return weight.permute(order).contiguous()


def _relu_add(result: Tensor, relu: bool, skip: Tensor | None) -> Tensor:
    if relu:  # in place, but not on a view: its base may be needed for a gradient
        result = F.relu(result) if result._is_view() else F.relu_(result)
    return result if skip is None else add_into(result, skip)


def conv_plain(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """layer(x), by torch."""
    if _is_small_matrix_product(x, layer):
        return F.linear(x.movedim(1, -1), layer.weight.flatten(1), layer.bias).movedim(-1, 1)
    if not onednn_suits(x, layer.weight):
        result: Tensor = layer._conv_forward(x, layer.weight, layer.bias)
        return result
    assert not isinstance(layer.padding, str)
    x = channels_last(x)
    if isinstance(layer, nn.Conv3d) and layer.out_channels == 1 and ops.usable_on_cpu(x):
        from gbinet.ops import conv_cpu

        if layer.kernel_size == (3, 3, 3) and layer.stride == (1, 1, 1):
            return conv_cpu.conv3d_one_output(x, layer)
    output: Tensor = torch.mkldnn_convolution(
        x, layer.weight, layer.bias, layer.padding, layer.stride, layer.dilation, layer.groups
    )
    return output


def _is_small_matrix_product(x: Tensor, layer: nn.Conv2d | nn.Conv3d) -> bool:
    """Whether to multiply matrices instead: with few outputs, the order of summation in oneDNN's 1x1
    convolution depends on the number of threads."""
    return (
        isinstance(layer, nn.Conv2d)
        and x.device.type == "cpu"
        and layer.kernel_size == layer.stride == (1, 1)
        and layer.out_channels < 8
        and layer.groups == 1
        and layer.padding == (0, 0)
    )


def conv_transpose_plain(volume: Tensor, layer: nn.ConvTranspose3d) -> Tensor:
    """layer(volume), by torch: [B, I, D, H, W] -> [B, O, D, 2 H, 2 W]."""
    if not onednn_suits(volume, layer.weight):
        return nn.ConvTranspose3d.forward(layer, volume)
    if ops.usable_on_cpu(volume):
        from gbinet.ops import conv_cpu

        if layer.out_channels <= conv_cpu.FEW_OUTPUTS:
            return conv_cpu.conv_transpose(volume, layer)
    # Outputs of one parity of row and column see the same taps: four plain convolutions, interleaved.
    weight = layer.weight.flip(2).transpose(0, 1)  # [O, I, 3, 3, 3]
    batch, _, bins, height, width = volume.shape
    rows = volume.new_empty(batch, bins, 2 * height, 2 * width, layer.out_channels)
    output = rows.permute(0, 4, 1, 2, 3)
    padded = F.pad(volume, (0, 1, 0, 1))
    for a, down in enumerate(UPSAMPLING_TAPS):
        for b, across in enumerate(UPSAMPLING_TAPS):
            window = padded[..., : height + a, : width + b]
            kernel = weight[:, :, :, down][..., across]
            output[..., a::2, b::2] = torch.mkldnn_convolution(
                window, kernel, layer.bias, (1, 0, 0), (1, 1, 1), (1, 1, 1), 1
            )
    return output


def onednn_suits(volume: Tensor, weight: Tensor) -> bool:
    """Whether to ask for oneDNN by name.

    For one volume of few channels on a CPU, torch 2.13 picks algorithms 3 to 10 times slower than oneDNN's.
    1x1x1 convolutions are matrix products, for which torch's choice is right.
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
