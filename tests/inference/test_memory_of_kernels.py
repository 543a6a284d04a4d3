"""Peak memory of a network made ready on a GPU, counted from the lifetimes of its tensors: no GPU is needed.

Kernels are replaced by nothing and tensors have no data; what the kernels' wrappers allocate is real.
"""

import importlib
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gbinet import ops
from gbinet.camera import Camera
from gbinet.inference.graphs import tensors_in
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet

KernelInterface = pytest.importorskip("triton.runtime.jit", reason="Triton is not installed").KernelInterface


class Peak(TorchDispatchMode):
    """Bytes of all storages made inside, at their most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor)
        return result

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = rounded(storage.nbytes())
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class Nothing:
    """A kernel that does nothing."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **options: None


def on_device(model: GBiNet) -> int:
    """Bytes of the weights and of all that is packed."""
    packed = [getattr(module, "packed", None) for module in model.modules()]
    found = [*model.parameters(), *tensors_in(packed)]
    return sum(rounded(t.numel() * t.element_size()) for t in found)


def rounded(size: int) -> int:
    """As torch's allocator rounds."""
    return -(-size // 512) * 512


PeakMiB = Callable[[int, int, int], float]  # of width, height, views


def counted_peaks(monkeypatch: pytest.MonkeyPatch, model: GBiNet) -> PeakMiB:
    """Peak in MiB of a depth map, images (float32) and weights included."""
    monkeypatch.setattr(ops, "usable", lambda *tensors: True)
    files = Path(ops.__file__).parent.glob("*_triton.py")
    modules = [importlib.import_module(f"gbinet.ops.{file.stem}") for file in files]  # before any is changed
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, KernelInterface):
                monkeypatch.setattr(module, name, Nothing())
    ready = prepare(model, "meta", torch.float16)

    def run(width: int, height: int, views: int) -> Peak:
        with torch.inference_mode(), Peak() as counted:
            images = torch.empty(1, views, 3, height, width, device="meta")
            K, pose = torch.empty(1, views, 3, 3, device="meta"), torch.empty(1, views, 4, 4, device="meta")
            ready(images, Camera(K, pose, width, height), torch.empty(1, 2, device="meta"))
            del images, K, pose
        return counted

    # Weights, and as the kernels read them; what depends on the number of planes is made in the first run.
    weights = on_device(ready) + run(64, 64, 2).now
    return lambda width, height, views: (run(width, height, views).peak + weights) / 2**20


@pytest.fixture
def peak_mib(monkeypatch: pytest.MonkeyPatch) -> PeakMiB:
    return counted_peaks(monkeypatch, GBiNet())


def test_the_bundled_weights_stay_below_550_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(GBiNet.from_pretrained().config, first_spacing=0.0, first_bins=64)  # looks at no cameras
    peak_mib = counted_peaks(monkeypatch, GBiNet(config))
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
