"""Peak memory of a network made ready on a GPU, counted from the lifetimes of its tensors: no GPU is needed.

Kernels are replaced by nothing and tensors have no data; what the kernels' wrappers allocate is real.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gbinet import ops
from gbinet.camera import Camera
from gbinet.inference.graphs import tensors_in
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet

KernelInterface = pytest.importorskip("triton.runtime.jit", reason="Triton is not installed").KernelInterface


GRANULARITY = 512  # bytes that torch's allocator rounds to


class NoKernel:
    """A kernel that does nothing when it is launched."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **options: None


def on_device(model: GBiNet) -> int:
    """Bytes of the weights and of all that is packed."""
    packed = [getattr(module, "packed", None) for module in model.modules()]
    tensors = [*model.parameters(), *tensors_in(packed)]
    return sum(-(-t.nbytes // GRANULARITY) * GRANULARITY for t in tensors)


PeakMiB = Callable[[int, int, int], float]  # of width, height, views


def counted_peaks(monkeypatch: pytest.MonkeyPatch, live_memory: Callable[..., Any], model: GBiNet) -> PeakMiB:
    """Peak in MiB of a depth map, images (float32) and weights included."""
    monkeypatch.setattr(ops, "usable", lambda *tensors: True)
    files = Path(ops.__file__).parent.glob("*_triton.py")
    modules = [importlib.import_module(f"gbinet.ops.{file.stem}") for file in files]  # before any is changed
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, KernelInterface):
                monkeypatch.setattr(module, name, NoKernel())
    ready = prepare(model, "meta", torch.float16)

    def run(width: int, height: int, views: int) -> Any:
        with torch.inference_mode(), live_memory(GRANULARITY) as counted:
            images = torch.empty(1, views, 3, height, width, device="meta")
            K, pose = torch.empty(1, views, 3, 3, device="meta"), torch.empty(1, views, 4, 4, device="meta")
            ready(images, Camera(K, pose, width, height), torch.empty(1, 2, device="meta"))
            del images, K, pose
        return counted

    # Weights, and as the kernels read them; what depends on the number of planes is made in the first run.
    weights = on_device(ready) + run(64, 64, 2).live
    return lambda width, height, views: (run(width, height, views).peak + weights) / 2**20


@pytest.fixture
def peak_mib(monkeypatch: pytest.MonkeyPatch, live_memory: Callable[..., Any]) -> PeakMiB:
    return counted_peaks(monkeypatch, live_memory, GBiNet())


def test_the_bundled_weights_stay_below_550_mib(
    monkeypatch: pytest.MonkeyPatch, live_memory: Callable[..., Any]
) -> None:
    config = replace(
        GBiNet.from_pretrained().config, first_spacing=0.0, first_bins=64
    )  # not computed from cameras
    peak_mib = counted_peaks(monkeypatch, live_memory, GBiNet(config))
    assert 450 < peak_mib(1600, 1152, 5) < 550


def test_less_than_500_mib_at_the_papers_size(peak_mib: PeakMiB) -> None:
    assert 400 < peak_mib(1600, 1152, 5) < 500


def test_linear_in_pixels_and_views(peak_mib: PeakMiB) -> None:
    small, middle, large = (peak_mib(640 * k, 512, 5) for k in (1, 2, 3))
    assert abs((large - middle) / (middle - small) - 1) < 0.02
    few, some, many = (peak_mib(1280, 512, v) for v in (6, 8, 10))
    assert abs((many - some) / (some - few) - 1) < 0.02


def test_24_megapixels_fit_into_8_gib(peak_mib: PeakMiB) -> None:
    assert peak_mib(6000, 4000, 5) < 8 * 1024
