"""The transposed convolution of four pixels at once equals torch's."""

import pytest
import torch
import torch.nn.functional as F

from gbinet.ops.conv import packed_weight

transpose = pytest.importorskip("gbinet.ops.conv_transpose_triton", exc_type=ImportError)


@pytest.mark.parametrize("inputs, outputs, planes", [(16, 8, 4), (8, 4, 2), (5, 3, 6), (32, 16, 1)])
def test_adds_into_its_target(inputs: int, outputs: int, planes: int, kernel_device: torch.device) -> None:
    torch.manual_seed(inputs)
    volume = torch.randn(2, inputs, planes, 5, 34).half().to(kernel_device)
    weight = torch.randn(inputs, outputs, 3, 3, 3).half().to(kernel_device)
    bias = torch.randn(outputs).to(kernel_device)
    skip = torch.randn(2, outputs, planes, 10, 68).half().to(kernel_device)
    expected = F.conv_transpose3d(volume.float(), weight.float(), bias, (1, 2, 2), 1, (0, 1, 1)).relu() + skip
    target = skip.contiguous(memory_format=torch.channels_last_3d)
    result = transpose.conv_transpose3d_into(
        volume, *transpose.pack(packed_weight(weight, transposed=True), bias), target
    )
    assert result.data_ptr() == target.data_ptr()
    torch.testing.assert_close(target.float(), expected, rtol=1e-3, atol=1e-3)  # rounded once, at the end


def test_too_large_volumes_do_not_suit() -> None:
    def volume(channels: int, height: int, width: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.empty(1, channels, 4, height, width, device="meta", dtype=dtype)

    assert transpose.suits(volume(16, 2000, 3000), 8)
    assert not transpose.suits(volume(128, 8, 8), 64)  # too many sums for the registers
    assert not transpose.suits(volume(8, 8192, 8192), 4)  # indices beyond 32 bits
    assert not transpose.suits(volume(16, 2000, 3000, torch.float32), 8)
