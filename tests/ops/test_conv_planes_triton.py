"""3D convolutions over planes times channels equal torch's."""

import pytest
import torch
import torch.nn.functional as F

from gbinet.ops.conv import packed_weight

planes = pytest.importorskip("gbinet.ops.conv_planes_triton", exc_type=ImportError)


@pytest.mark.parametrize(
    "inputs, outputs, depth, stride, relu",
    [(4, 8, 4, 1, True), (8, 1, 4, 1, False), (8, 16, 4, 2, True), (16, 16, 2, 1, True), (3, 5, 6, 2, False)],
)
def test_conv3d(
    inputs: int, outputs: int, depth: int, stride: int, relu: bool, kernel_device: torch.device
) -> None:
    torch.manual_seed(inputs)
    volume = torch.randn(2, inputs, depth, 9, 37).to(kernel_device)
    weight = torch.randn(outputs, inputs, 3, 3, 3).to(kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    expected = F.conv3d(volume, weight, bias, (1, stride, stride), 1)
    expected = expected.relu() if relu else expected
    assert planes.suits(volume, outputs)
    matrix, wide = planes.pack(packed_weight(weight), bias, depth)
    result = planes.conv3d(volume, matrix, wide, outputs, stride=stride, relu=relu)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_too_large_volumes_do_not_suit() -> None:
    def volume(channels: int, height: int, width: int) -> torch.Tensor:
        return torch.empty(1, channels, 4, height, width, device="meta")

    assert planes.suits(volume(8, 4000, 6000), 1)
    assert not planes.suits(volume(32, 8, 8), 32)  # a matrix product of its own size suits it better
    assert not planes.suits(volume(16, 8192, 8192), 16)  # indices beyond 32 bits
