"""Convolutions in strips equal torch's."""

import pytest
import torch
import torch.nn.functional as F

from gbinet.ops.conv import packed_weight

strips = pytest.importorskip("gbinet.ops.conv_strips_triton", exc_type=ImportError)


def random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape).half().to(device)


def agree(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result.float(), expected, rtol=1e-3, atol=1e-3)  # rounded once, at the end


@pytest.mark.parametrize(
    "inputs, outputs, size, dilation, relu, skip, planar",
    [
        (4, 8, (5, 130), 1, True, False, False),  # two blocks of 128 pixels
        (8, 8, (11, 37), 1, True, True, False),
        (16, 18, (6, 70), 1, False, False, True),  # two blocks of 64
        (24, 16, (5, 37), 1, True, False, False),
        (16, 16, (11, 66), 2, True, True, False),
        (16, 16, (11, 37), 4, True, True, False),
        (16, 16, (11, 37), 8, True, True, False),
    ],
)
def test_of_images(
    inputs: int,
    outputs: int,
    size: tuple[int, int],
    dilation: int,
    relu: bool,
    skip: bool,
    planar: bool,
    kernel_device: torch.device,
) -> None:
    torch.manual_seed(inputs)
    image = random(2, inputs, *size, device=kernel_device)
    weight = random(outputs, inputs, 3, 3, device=kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv2d(image.float(), weight.float(), bias, padding=dilation, dilation=dilation)
    expected = expected.relu() if relu else expected
    extra = random(2, outputs, 1, *size, device=kernel_device) if skip else None
    matrices = strips.pack(packed_weight(weight), bias, 1)
    result = strips.conv(image[:, :, None], matrices, dilation=dilation, relu=relu, skip=extra, planar=planar)
    assert result.is_contiguous() == planar
    agree(result[:, :, 0], expected if extra is None else expected + extra[:, :, 0])


@pytest.mark.parametrize("dilation", [1, 2])
def test_of_long_strips(dilation: int, monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device) -> None:
    monkeypatch.setattr(strips, "_PROGRAMS", 5)  # strips of 10 rows
    torch.manual_seed(0)
    image = random(2, 4, 25, 20, device=kernel_device)
    weight = random(4, 4, 3, 3, device=kernel_device)
    bias = torch.randn(4).to(kernel_device)
    expected = F.conv2d(image.float(), weight.float(), bias, padding=dilation, dilation=dilation).relu()
    matrices = strips.pack(packed_weight(weight), bias, 1)
    agree(strips.conv(image[:, :, None], matrices, dilation=dilation)[:, :, 0], expected)


@pytest.mark.parametrize(
    "inputs, outputs, planes, height, skip",
    [
        (4, 8, 6, 6, "none"),  # all planes together
        (4, 8, 6, 6, "of all planes"),
        (8, 1, 6, 6, "own"),
        (8, 8, 9, 4, "of all planes"),  # planes one by one
        (16, 1, 5, 5, "none"),
        (24, 4, 3, 4, "own"),  # and taps along a row one by one
    ],
)
def test_of_volumes(
    inputs: int, outputs: int, planes: int, height: int, skip: str, kernel_device: torch.device
) -> None:
    torch.manual_seed(inputs)
    volume = random(2, inputs, planes, height, 14, device=kernel_device)
    weight = random(outputs, inputs, 3, 3, 3, device=kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv3d(volume.float(), weight.float(), bias, padding=1).relu()
    extra = random(2, outputs, planes if skip == "own" else 1, height, 14, device=kernel_device)
    matrices = strips.pack(packed_weight(weight), bias, planes)
    result = strips.conv(volume, matrices, skip=None if skip == "none" else extra)
    agree(result, expected if skip == "none" else expected + extra)


def test_what_other_kernels_compute() -> None:
    def suits(inputs: int, side: int, kernel: int = 3, stride: int = 1, bits: int = 16) -> bool:
        dtype = {16: torch.float16, 32: torch.float32}[bits]
        volume = torch.empty(1, inputs, 4, side, side, device="meta", dtype=dtype)
        return strips.suits(volume, torch.empty(3, kernel, kernel, inputs, 8, device="meta"), stride)

    assert suits(8, 5000)
    assert not suits(8, 8192)  # indices beyond 32 bits
    assert not suits(32, 40)
    assert not suits(8, 40, kernel=1)
    assert not suits(8, 40, stride=2)
    assert not suits(8, 40, bits=32)
