"""Each fused kernel against its plain twin and against the floor: the bytes it must move at copy speed.

python benchmarks/kernels.py --size 1600x1152        (needs a CUDA device)
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _common import report
from torch import Tensor

from gbinet.inference.engine import _pack as pack_view_weight
from gbinet.inference.fold import fold_batch_norms
from gbinet.kernels import choose, conv, cost_volume, deform, merge, planes
from gbinet.kernels import warp as warp_kernel
from gbinet.model import search
from gbinet.model.cost_volume import fuse_views
from gbinet.model.deform import deform_conv2d_plain
from gbinet.model.gbinet import GBiNet
from gbinet.model.search import SearchGrid, SearchState
from gbinet.model.warp import warp_correlation_plain

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


def conv3d_case(inputs: int, outputs: int, stride: int, height: int, width: int) -> Case:
    x = volume(inputs, 4, height, width)
    weight = torch.randn(outputs, inputs, 3, 3, 3, device="cuda", dtype=HALF)
    bias = torch.randn(outputs, device="cuda", dtype=HALF)
    packed, wide, last = conv.pack(weight), bias.float(), weight.to(memory_format=torch.channels_last_3d)
    bytes_moved = 2 * (x.numel() + x.numel() // inputs * outputs // stride**2)
    over_planes = planes.suits(x, outputs)
    matrix, repeated = planes.pack(packed, wide, 4)
    return (
        f"conv3d {inputs}->{outputs} /{stride} {height}x{width}{', over planes' if over_planes else ''}",
        (lambda: planes.conv3d(x, matrix, repeated, outputs, stride=stride))
        if over_planes
        else (lambda: conv.conv3d(x, packed, wide, stride=stride)),
        lambda: F.conv3d(x, last, bias, (1, stride, stride), 1).relu_(),
        bytes_moved,
    )


def up_case(inputs: int, outputs: int, height: int, width: int) -> Case:
    x, skip = volume(inputs, 4, height, width), volume(outputs, 4, 2 * height, 2 * width)
    weight = torch.randn(inputs, outputs, 3, 3, 3, device="cuda", dtype=HALF)
    bias = torch.randn(outputs, device="cuda", dtype=HALF)
    packed, wide = conv.pack(weight, transposed=True), bias.float()
    last = weight.to(memory_format=torch.channels_last_3d)

    def plain() -> Tensor:
        return F.conv_transpose3d(x, last, bias, (1, 2, 2), 1, (0, 1, 1)).relu_().add_(skip)

    over_planes = planes.suits(x, outputs, transposed=True)
    matrix, repeated = planes.pack(packed, wide, 4, transposed=True)

    def fused() -> Tensor:
        if over_planes:
            return planes.conv_transpose3d_into(x, matrix, repeated, skip)
        return conv.conv_transpose3d(x, packed, wide, skip=skip, into_skip=True)

    name = f"up3d {inputs}->{outputs} {height}x{width}{', over planes' if over_planes else ''}"
    return name, fused, plain, 2 * (x.numel() + 2 * skip.numel())


def conv2d_case(inputs: int, outputs: int, kernel: int, stride: int, height: int, width: int) -> Case:
    x = image(inputs, height, width)
    weight = torch.randn(outputs, inputs, kernel, kernel, device="cuda", dtype=HALF)
    bias = torch.randn(outputs, device="cuda", dtype=HALF)
    packed, wide, last = conv.pack(weight), bias.float(), weight.to(memory_format=torch.channels_last)
    return (
        f"conv2d {inputs}->{outputs} {kernel}x{kernel} /{stride} {height}x{width}",
        lambda: conv.conv2d(x, packed, wide, stride=stride),
        lambda: F.conv2d(x, last, bias, stride, kernel // 2).relu_(),
        2 * height * width * (inputs + outputs // stride**2),
    )


def deform_case(inputs: int, outputs: int, height: int, width: int) -> Case:
    x = image(inputs, height, width)
    offsets = image(18, height, width).contiguous()
    weight = torch.randn(outputs, inputs, 3, 3, device="cuda", dtype=HALF)
    taps, output = deform.pack_taps(weight), x.new_empty(1, height, width, outputs)
    return (
        f"deform {inputs}->{outputs} {height}x{width}",
        lambda: deform.deform_conv2d_into(x, offsets, taps, output),
        lambda: deform_conv2d_plain(x, offsets, weight),
        2 * height * width * (inputs + 18 + outputs),
    )


def merge_case(inputs: int, height: int, width: int) -> Case:
    own, coarser = image(inputs, height, width), image(2 * inputs, height // 2, width // 2)
    weight = torch.randn(2 * inputs, inputs, 1, 1, device="cuda", dtype=HALF)
    bias = torch.randn(2 * inputs, device="cuda", dtype=HALF)
    flat, wide = weight[:, :, 0, 0].T.contiguous(), bias.float()

    def plain() -> Tensor:
        return F.conv2d(own, weight, bias) + F.interpolate(coarser, scale_factor=2.0, mode="bilinear")

    bytes_moved = 2 * height * width * (inputs + inputs // 2 + 2 * inputs)
    fused = lambda: merge.merge(own, coarser, flat, wide)  # noqa: E731
    return f"merge {inputs} {height}x{width}", fused, plain, bytes_moved


def warp_case(channels: int, groups: int, height: int, width: int) -> Case:
    reference, source = image(channels, height, width), image(channels, height, width)
    matrix = torch.eye(3, device="cuda")[None]
    offset = torch.tensor([[3000.0, 0.0, 0.0]], device="cuda")
    depth = 425 + 510 * torch.rand(1, 4, height, width, device="cuda")
    return (
        f"warp + correlation, one source, {channels} channels {height}x{width}",
        lambda: warp_kernel.warp_correlation(reference, source, matrix, offset, depth, groups),
        lambda: warp_correlation_plain(reference, source, matrix, offset, depth, groups),
        height * width * (2 * 2 * channels + 4 * 4 + 2 * 4 * groups),
    )


def state_of(height: int, width: int) -> SearchState:
    """Before stage 8 of the preset."""
    grid = SearchGrid()
    cell = torch.randint(0, grid.cells(7), (1, height, width), dtype=torch.int32, device="cuda")
    return SearchState(grid, torch.tensor([[425.0, 935.0]], device="cuda"), 7, cell)


def choose_case(height: int, width: int) -> Case:
    logits, state = torch.randn(1, 4, height, width, device="cuda", dtype=HALF), state_of(height, width)

    def plain() -> object:
        probabilities = logits.float().softmax(1)
        return search.descend(state, logits.max(1).indices), probabilities.amax(1)

    bytes_moved = height * width * (2 * 4 + 4 + 8)
    return f"choose {height}x{width}", lambda: choose.choose(state, logits), plain, bytes_moved


def cost_volume_case(channels: int, groups: int, height: int, width: int) -> Case:
    """Four sources 60 mm apart, as in the benchmark of the whole network. Plain: model/cost_volume.py."""
    reference, sources = image(channels, height, width), [image(channels, height, width) for _ in range(4)]
    focal = 2892.0 * width / 1600
    matrices = torch.eye(3, device="cuda").expand(1, 4, 3, 3)
    offsets = torch.tensor([[[60.0 * i * focal, 0.0, 0.0] for i in range(1, 5)]], device="cuda")
    transforms = torch.cat([matrices.flatten(2), offsets], dim=2)
    state = state_of(height, width)
    net = fold_batch_norms(GBiNet()).view_weights[3 if groups == 4 else 2].to("cuda", HALF)
    packed = pack_view_weight(net, torch.device("cuda"), HALF)
    assert packed is not None
    return (
        f"whole cost volume, four sources, {channels} channels {height}x{width}",
        lambda: cost_volume.fused_cost_volume(reference, sources, transforms, state, packed, groups),
        lambda: fuse_views(reference, sources, matrices, offsets, search.hypotheses(state), net, groups),
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
