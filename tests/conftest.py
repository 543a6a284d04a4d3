"""Fixtures that several packages share: devices, types, the research data beside the clone, a tiny scene."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from small_scene import TinyScene, tiny_scene
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest_plugins = ["ball_scene", "exact_plane"]  # files in tests/ with a fixture each

# The same examples in every run, and no time limit on one: a failure is always the change that was made.
hypothesis.settings.register_profile("gbinet", deadline=None, derandomize=True)
hypothesis.settings.load_profile("gbinet")

SHARED = Path(__file__).parents[1] / ".." / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of research data beside the clone; tests that want it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("there is no ../shared beside this clone")
    return SHARED


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device that the test should run on; make random data on the CPU and move it."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch.device(request.param)


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Every type that features may have."""
    dtype: torch.dtype = request.param
    return dtype


@pytest.fixture(scope="session")
def make_tiny_scene() -> Callable[..., TinyScene]:
    """The factory of tiny scenes: make_tiny_scene(views=3, height=48, width=64)."""
    return tiny_scene


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations made inside and Python has not dropped yet.

    granularity: sizes are rounded up to multiples of it, as an allocator does.
    """

    def __init__(self, granularity: int = 1) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._granularity = granularity
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage()._cdata not in given:  # no view of an input
                self._count(made.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, -(-storage.nbytes() // self._granularity) * self._granularity
        if key not in self._counted:
            self._counted.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.live -= size


@pytest.fixture(scope="session")
def live_memory() -> type[LiveMemory]:
    """`with live_memory() as memory: ...`, then memory.peak: bytes of tensors alive at once, made inside."""
    return LiveMemory
