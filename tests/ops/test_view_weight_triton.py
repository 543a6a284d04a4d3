"""Weighing and fusing all views at once in training equals one view after the other."""

import copy

import pytest
import torch
from torch import Tensor, nn

from gbinet.model.cost_volume import ViewWeight
from gbinet.ops.cost_volume import cost_volume_plain, cost_volume_training
from gbinet.ops.view_weight import suits, weigh_views_fast


def problem(
    channels: int, groups: int, bins: int, device: torch.device
) -> tuple[tuple[Tensor, ...], ViewWeight, Tensor]:
    """Features, transforms and depths of 3 views; a network; an upstream gradient."""
    torch.manual_seed(bins)
    features = torch.randn(2, 4, channels, 7, 10).to(device)
    matrices = (torch.eye(3) + 0.05 * torch.randn(2, 3, 3, 3)).to(device)
    offsets = torch.randn(2, 3, 3).to(device)
    depth = (1 + 4 * torch.rand(2, bins, 7, 10)).to(device)
    network = ViewWeight(groups).train()
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm3d):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
    transforms = torch.cat([matrices.flatten(2), offsets], dim=2)
    return (features, transforms, depth), network.to(device), torch.randn(2, groups, bins, 7, 10)


@pytest.mark.parametrize("channels, groups, bins", [(8, 4, 4), (16, 8, 2), (8, 8, 6)])
def test_weigh_views(channels: int, groups: int, bins: int, kernel_device: torch.device) -> None:
    (features, transforms, depth), plain, upstream = problem(channels, groups, bins, kernel_device)
    fused = copy.deepcopy(plain)
    a, b = features.clone().requires_grad_(), features.clone().requires_grad_()
    expected = cost_volume_plain(a.unbind(1), transforms, depth, plain, groups)
    result = cost_volume_training(b, transforms, depth, fused, groups)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    expected.backward(upstream.to(kernel_device))
    result.backward(upstream.to(kernel_device))
    assert a.grad is not None
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-2, atol=2e-4 * float(a.grad.abs().max()))
    for (name, x), y in zip(fused.named_parameters(), plain.parameters(), strict=True):
        assert x.grad is not None and y.grad is not None
        scale = 1e-3 * float(y.grad.abs().max()) + 1e-6
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=scale, msg=name)
    for x, y in zip(fused.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_half_precision_is_close_to_float32(kernel_device: torch.device) -> None:
    """As in mixed precision; without a GPU in float16, because the interpreter cannot multiply bfloat16."""
    kind = torch.bfloat16 if kernel_device.type == "cuda" else torch.float16
    torch.manual_seed(0)
    volumes = (0.2 + 0.7 * torch.randn(3, 2, 4, 12, 16, 4)).to(kernel_device, kind)
    upstream = torch.randn(2, 4, 12, 16, 4).to(kernel_device, kind)
    wide, half = ViewWeight(4).to(kernel_device).train(), ViewWeight(4).to(kernel_device).train()
    half.load_state_dict(wide.state_dict())
    results = []
    for network, values in ((wide, volumes.float()), (half, volumes.clone())):
        values.requires_grad_()
        output = weigh_views_fast(values, network)
        output.backward(upstream.to(values.dtype))
        assert values.grad is not None
        results.append([output, values.grad, *(p.grad for p in network.parameters())])
    for number, (a, b) in enumerate(zip(*results, strict=True)):
        assert a is not None and b is not None
        gap = (b.detach().float() - a.detach()).norm() / a.detach().norm()
        # bfloat16 has 8 bits: where bins are nearly alike another one is the largest, and gets the gradient
        assert float(gap) < (0.3 if kind == torch.bfloat16 else 0.1), number


def test_what_suits() -> None:
    assert suits(ViewWeight(4), 4, 16)
    assert not suits(ViewWeight(4).eval(), 4, 4)
    assert not suits(ViewWeight(6), 6, 4)
    assert not suits(nn.Identity(), 4, 4)
