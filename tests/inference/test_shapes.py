"""Tensors without data have the shapes, layouts and types that real ones would have."""

from __future__ import annotations

import torch

from gbinet.inference.shapes import EmptyTensor, ShapesOnly


def work(x: torch.Tensor) -> list[torch.Tensor]:
    """Of all kinds: new, view, in place, of two, given out as it came."""
    y = x.new_empty(2, 3, 4).to(memory_format=torch.contiguous_format)
    y.copy_(x[None].expand(2, 3, 4)).mul_(2)
    z = torch.cat([y.permute(2, 0, 1), torch.zeros(4, 2, 3, device=x.device, dtype=x.dtype)])
    return [
        y,
        z,
        z.contiguous(),
        z.half().sum(0),
        (z > 1).long(),
        torch.arange(3, device=x.device),
        x.t()[1:],
    ]


def test_shapes_are_those_of_real_tensors() -> None:
    real = work(torch.zeros(3, 4))
    with ShapesOnly(torch.device("cpu")), torch.no_grad():
        empty = work(torch.empty(3, 4))
        target = torch.empty(3, 4)
        assert target.add_(1) is target and target.contiguous() is target
    for one, other in zip(empty, real, strict=True):
        assert isinstance(one, EmptyTensor) and (one.shape, one.stride()) == (other.shape, other.stride())
        assert (one.dtype, one.device, one.storage_offset()) == (
            other.dtype, other.device, other.storage_offset(),
        )  # fmt: skip


def test_what_does_not_concern_the_device_is_computed() -> None:
    with ShapesOnly(torch.device("lazy")), torch.no_grad():
        there = torch.empty(2, 2, device="lazy")
        assert isinstance(there, EmptyTensor) and there.device.type == "lazy"
        assert isinstance(there * torch.ones(2), EmptyTensor)
        assert float(torch.ones(2).sum()) == 2.0
