"""Compares each fused kernel with its plain reference and with a lower bound: its bytes at copy speed.

python benchmarks/kernels.py --size 1600x1152        # needs a CUDA device
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from _common import report
from torch import Tensor, nn

from gbinet.inference.prepare import fold_batch_norms
from gbinet.model.cost_volume import ViewWeight
from gbinet.model.gbinet import GBiNet
from gbinet.model.search import SearchGrid, SearchState
from gbinet.ops import choose, conv, deform, merge
from gbinet.ops.cost_volume import cost_volume_plain
from gbinet.ops.warp import warp_correlation_fast, warp_correlation_plain

HALF = torch.float16
FLUSH_BYTES = 256 << 20  # more than the L2 cache holds


def copy_speed() -> float:
    """Bytes per second, read and written, of a large copy on this device."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (milliseconds(lambda: target.copy_(source)) * 1e-3)


def milliseconds(run: Callable[[], object], repeat: int = 10) -> float:
    """Median time on the GPU, the cache cold."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for i in range(repeat + 2):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(float(begin.elapsed_time(end)))
    return statistics.median(times)


def volume(channels: int, bins: int, height: int, width: int) -> Tensor:
    return torch.randn(1, bins, height, width, channels, device="cuda", dtype=HALF).permute(0, 4, 1, 2, 3)


def image(channels: int, height: int, width: int) -> Tensor:
    return torch.randn(1, height, width, channels, device="cuda", dtype=HALF).permute(0, 3, 1, 2)


Case = tuple[str, Callable[[], object], Callable[[], object], int]  # name, fused, plain, bytes


def convolution(kind: type[nn.Module], dimensions: int, *sizes: Any, **options: Any) -> Any:
    layouts = {2: torch.channels_last, 3: torch.channels_last_3d}
    return kind(*sizes, **options).to("cuda", HALF).to(memory_format=layouts[dimensions])  # type: ignore[call-overload]


def conv3d_case(inputs: int, outputs: int, stride: int, height: int, width: int) -> Case:
    x = volume(inputs, 4, height, width)
    layer = convolution(nn.Conv3d, 3, inputs, outputs, 3, (1, stride, stride), padding=1)
    packed = conv.pack(layer)
    return (
        f"conv3d {inputs}->{outputs} /{stride} {height}x{width}",
        lambda: conv.conv(x, layer, packed, relu=True),
        lambda: layer(x).relu_(),
        2 * (x.numel() + x.numel() // inputs * outputs // stride**2),
    )


def up_case(inputs: int, outputs: int, height: int, width: int) -> Case:
    x, skip = volume(inputs, 4, height, width), volume(outputs, 4, 2 * height, 2 * width)
    layer = convolution(nn.ConvTranspose3d, 3, inputs, outputs, 3, (1, 2, 2), 1, (0, 1, 1))
    packed = conv.pack(layer)
    return (
        f"up3d {inputs}->{outputs} {height}x{width}",
        lambda: conv.conv_transpose_relu_add(x, layer, packed, skip),
        lambda: layer(x).relu_().add_(skip),
        2 * (x.numel() + 2 * skip.numel()),
    )


def conv2d_case(inputs: int, outputs: int, kernel: int, stride: int, height: int, width: int) -> Case:
    x = image(inputs, height, width)
    layer = convolution(nn.Conv2d, 2, inputs, outputs, kernel, stride, kernel // 2)
    packed = conv.pack(layer)
    return (
        f"conv2d {inputs}->{outputs} {kernel}x{kernel} /{stride} {height}x{width}",
        lambda: conv.conv(x, layer, packed, relu=True),
        lambda: layer(x).relu_(),
        2 * height * width * (inputs + outputs // stride**2),
    )


def deform_case(inputs: int, outputs: int, height: int, width: int) -> Case:
    x = image(inputs, height, width)
    offsets = image(18, height, width).contiguous()
    weight = torch.randn(outputs, inputs, 3, 3, device="cuda", dtype=HALF)
    packed, output = deform.pack(weight), deform.empty_output(x, 1, outputs, height, width)
    return (
        f"deform {inputs}->{outputs} {height}x{width}",
        lambda: deform.deform_conv2d(x, offsets, weight, packed, output),
        lambda: deform.deform_conv2d_plain(x, offsets, weight),
        2 * height * width * (inputs + 18 + outputs),
    )


def merge_case(inputs: int, height: int, width: int) -> Case:
    own, coarser = image(inputs, height, width), image(2 * inputs, height // 2, width // 2)
    lateral = convolution(nn.Conv2d, 2, inputs, 2 * inputs, 1)
    packed = conv.pack(lateral)
    return (
        f"merge {inputs} {height}x{width}",
        lambda: merge.merge(own, coarser, lateral, packed),
        lambda: merge.merge_plain(own, coarser, lateral),
        2 * height * width * (inputs + inputs // 2 + 2 * inputs),
    )


def warp_case(channels: int, groups: int, height: int, width: int) -> Case:
    reference, source = image(channels, height, width), image(channels, height, width)
    transform = torch.tensor([[1.0, 0, 0, 0, 1, 0, 0, 0, 1, 3000, 0, 0]], device="cuda")
    depth = 425 + 510 * torch.rand(1, 4, height, width, device="cuda")
    return (
        f"warp + correlation, one source, {channels} channels {height}x{width}",
        lambda: warp_correlation_fast(reference, source, transform, depth, groups),
        lambda: warp_correlation_plain(reference, source, transform, depth, groups),
        height * width * (2 * 2 * channels + 4 * 4 + 2 * 4 * groups),
    )


def state_of(height: int, width: int) -> SearchState:
    """Before stage 8 of the preset."""
    grid = SearchGrid()
    cell = torch.randint(0, grid.cells(7), (1, height, width), dtype=torch.int32, device="cuda")
    return SearchState(grid, torch.tensor([[425.0, 935.0]], device="cuda"), 7, cell)


def choose_case(height: int, width: int) -> Case:
    logits, bins = torch.randn(1, 4, height, width, device="cuda", dtype=HALF), state_of(height, width).bins
    return (
        f"choose {height}x{width}",
        lambda: choose.choose(bins, logits),
        lambda: choose.choose_plain(bins, logits),
        height * width * (2 * 4 + 4 + 8),
    )


def cost_volume_case(channels: int, groups: int, height: int, width: int) -> Case:
    """Four sources 60 mm apart, as in the benchmark of the whole network."""
    maps = [image(channels, height, width) for _ in range(5)]
    focal = 2892.0 * width / 1600
    rows = [[1.0, 0, 0, 0, 1, 0, 0, 0, 1, 60 * i * focal, 0, 0] for i in range(1, 5)]
    transforms = torch.tensor([rows], device="cuda")
    bins = state_of(height, width).bins
    net = fold_batch_norms(GBiNet()).view_weights[3 if groups == 4 else 2].to("cuda")
    assert isinstance(net, ViewWeight)
    net.pack(HALF)
    net.to(HALF)
    return (
        f"whole cost volume, four sources, {channels} channels {height}x{width}",
        lambda: net.cost_volume(maps, transforms, bins, 1),
        lambda: cost_volume_plain(maps, transforms, bins.depths(), net, groups),
        height * width * (2 * 5 * channels + 4 + 2 * 4 * groups),
    )


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="1600x1152", help="WIDTHxHEIGHT")
    parser.add_argument("--out", default=None)
    arguments = parser.parse_args()
    w, h = (int(v) for v in arguments.size.split("x"))
    speed = copy_speed()
    cases = [
        conv3d_case(4, 8, 1, h, w),
        conv3d_case(8, 1, 1, h, w),
        conv3d_case(8, 16, 2, h, w),
        conv3d_case(16, 16, 1, h // 2, w // 2),
        conv3d_case(16, 32, 2, h // 2, w // 2),
        conv3d_case(32, 32, 1, h // 4, w // 4),
        conv3d_case(32, 64, 2, h // 4, w // 4),
        conv3d_case(64, 64, 1, h // 8, w // 8),
        up_case(64, 32, h // 8, w // 8),
        up_case(32, 16, h // 4, w // 4),
        up_case(16, 8, h // 2, w // 2),
        conv2d_case(3, 8, 3, 1, h, w),
        conv2d_case(8, 8, 3, 1, h, w),
        conv2d_case(8, 16, 5, 2, h, w),
        conv2d_case(16, 16, 3, 1, h // 2, w // 2),
        conv2d_case(16, 32, 5, 2, h // 2, w // 2),
        conv2d_case(32, 32, 3, 1, h // 4, w // 4),
        conv2d_case(32, 64, 5, 2, h // 4, w // 4),
        conv2d_case(64, 64, 3, 1, h // 8, w // 8),
        conv2d_case(16, 18, 3, 1, h, w),
        conv2d_case(32, 18, 3, 1, h // 2, w // 2),
        conv2d_case(64, 18, 3, 1, h // 4, w // 4),
        merge_case(8, h, w),
        deform_case(16, 8, h, w),
        deform_case(32, 16, h // 2, w // 2),
        deform_case(64, 32, h // 4, w // 4),
        warp_case(8, 4, h, w),
        cost_volume_case(8, 4, h, w),
        cost_volume_case(16, 8, h // 2, w // 2),
        choose_case(h, w),
    ]
    figures: dict[str, object] = {"copy TB/s": round(speed / 1e12, 2)}
    for name, fused, plain, bytes_moved in cases:
        floor = bytes_moved / speed * 1e3
        fast, slow = milliseconds(fused), milliseconds(plain)
        row = {"fused ms": fast, "plain ms": slow, "floor ms": floor, "fused / floor": fast / floor}
        figures[name] = {k: round(v, 4) for k, v in row.items()}
    report("kernels", figures, arguments.out)


if __name__ == "__main__":
    main()
