"""Fixtures that several rooms share: devices, types, the research data beside the clone, a tiny scene."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gbinet.camera import Camera
from gbinet.scene import DepthRange

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


@dataclass(frozen=True)
class TinyScene:
    """A slanted textured plane seen by cameras in a row; view 0 is the reference."""

    images: Tensor  # [V, 3, H, W] in [0, 1]
    cameras: Camera  # [V]
    depth_range: DepthRange
    depth: Tensor  # [H, W] exact depth of view 0


def tiny_scene(views: int = 3, height: int = 48, width: int = 64) -> TinyScene:
    """Exact by construction: each pixel's colour is a smooth function of the point of the plane it sees."""
    focal = 1.1 * width
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]).expand(views, 3, 3)
    cam_from_world = torch.eye(4).repeat(views, 1, 1)
    for view in range(1, views):  # left, right, further left, ... each turned towards the plane a little
        side = (-1) ** view * (0.25 + 0.1 * (view // 2))
        angle = 0.06 * side
        turn = [[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]]
        cam_from_world[view, :3, :3] = torch.tensor(turn)
        cam_from_world[view, :3, 3] = torch.tensor([side, 0.05 * view, 0.0])
    cameras = Camera(K.contiguous(), cam_from_world, width, height)
    normal, distance = torch.tensor([0.2, -0.15, 1.0]), 4.0  # the plane: normal . x = distance
    images, depth = [], torch.empty(0)
    for view in range(views):
        camera = cameras[view]
        pixels = camera.pixel_grid().reshape(-1, 2)
        rays = camera.unproject(pixels, torch.ones(len(pixels))) - camera.centre  # [H * W, 3], z = 1
        z = (distance - camera.centre @ normal) / (rays @ normal)  # [H * W]
        points = camera.centre + rays * z[:, None]
        phase = points[:, :1] * torch.tensor([9.0, 13.0, 5.0]) + points[:, 1:2] * torch.tensor(
            [7.0, 3.0, 11.0]
        )
        colour = 0.5 + 0.25 * torch.sin(phase) + 0.2 * torch.sin(2.3 * phase.flip(1) + 1)
        images.append(colour.T.reshape(3, height, width).clamp(0, 1))
        if view == 0:
            depth = z.reshape(height, width)
    return TinyScene(torch.stack(images), cameras, DepthRange(2.5, 6.5), depth)


@pytest.fixture(scope="session")
def make_tiny_scene() -> Callable[..., TinyScene]:
    """The factory of tiny scenes: make_tiny_scene(views=3, height=48, width=64)."""
    return tiny_scene


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations made inside and Python has not dropped yet."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage()._cdata not in given:  # no view of an input
                self._count(made.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
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
