"""The kernels that a scene will need, compiled by many processes at once before they are needed.

The network is called with tensors that have a shape and no content. What it would launch is compiled instead,
so nothing runs on the device. Without this, kernels are compiled one after the other, at their first launch.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gbinet import ops
from gbinet.camera import Camera
from gbinet.errors import GBiNetError
from gbinet.formats.atomic import write_json
from gbinet.formats.lock import locked
from gbinet.formats.reading import read_record
from gbinet.inference import tiles
from gbinet.inference.compilers import Compilers, Request, compile_here
from gbinet.inference.device import pick_device, pick_precision
from gbinet.inference.graphs import for_inference
from gbinet.inference.predictor import DepthConfig
from gbinet.inference.shapes import ShapesOnly
from gbinet.inference.tiles import working_size
from gbinet.model.gbinet import GBiNet
from gbinet.scene import Scene

log = logging.getLogger(__name__)
Tell = Callable[[int, int], None]  # kernels done, kernels in all
_MOST_KINDS = 4  # of depth maps; the others' kernels are compiled when they come
_SAMPLED = 50  # views that are looked at for kinds
_ONE_AT_A_TIME = threading.Lock()  # Triton is changed while launches are noted


class MapKind(NamedTuple):
    """What the kernels of a depth map depend on."""

    width: int
    height: int
    first_bins: int | None


def has_kernels(device: torch.device) -> bool:
    """Whether anything is compiled for a device."""
    return ops.usable(torch.empty(0, device=device))


def kinds_of(scene: Scene, model: GBiNet, config: DepthConfig) -> list[MapKind]:
    """The most frequent kinds of a scene's depth maps; none for another kind of network."""
    if type(model) is not GBiNet:
        return []
    found: Counter[MapKind] = Counter()
    for view in scene.views[:: max(1, len(scene.views) // _SAMPLED)]:
        near_far = config.depth_range or view.depth_range
        if near_far is None or not view.sources:
            continue
        seen = [view.camera, *(scene.views[i].camera for i in view.best_sources(config.views - 1))]
        cameras = [camera.resized(*working_size(camera, config.max_size)) for camera in seen]
        bounds = torch.tensor([[near_far.near, near_far.far]])
        first_bins = model.first_bins(tiles._batch(cameras, torch.device("cpu")), bounds)
        found[MapKind(cameras[0].width, cameras[0].height, first_bins)] += 1
    return [kind for kind, _ in found.most_common(_MOST_KINDS)]


def compile_kernels(
    model: GBiNet,
    config: DepthConfig,
    kinds: Sequence[MapKind],
    others: Callable[[], object],  # launches what is needed beside the network
    tell: Tell | None = None,
) -> None:
    """Compile for depth maps of these kinds, unless that was done before on this machine."""
    device = pick_device(config.device)
    if type(model) is not GBiNet or not kinds or not has_kernels(device):
        return
    try:
        mark = _mark(model, config, kinds, device)
        if mark.exists():
            threading.Thread(target=load_kernels, args=(mark, device), name="kernels", daemon=True).start()
            return
        check_cache(mark.parent)
        with locked(mark.parent, lambda: tell(0, 1) if tell else None):  # who start together compile once
            if mark.exists():
                return
            with torch.cuda.device(device), compiling_only(mark.parent, tell) as compilers:
                others()
                _trace(model, config, kinds, device)
            write_json(mark, {"kernels": compilers.requests})
    except UnwritableCacheError:
        raise
    except Exception as error:  # it would only have saved time
        log.info("kernels are compiled when they are needed (%s)", error)


def load_kernels(mark: Path, device: torch.device) -> None:
    """Bring what an earlier run has compiled to the GPU: in a thread, while photos are looked at."""
    with suppress(Exception), torch.cuda.device(device):  # it would only have saved time
        for words in read_record(mark)["kernels"]:
            compile_here(Request(*words))._init_handles()


class UnwritableCacheError(GBiNetError):
    """There is no place for compiled kernels."""


def check_cache(cache: Path) -> None:
    """Triton would fail there at the first kernel, with an error that helps nobody."""
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UnwritableCacheError(
            f"{cache}: compiled kernels of the GPU are kept in this folder, and it cannot be written to; "
            "name another one in the environment (TRITON_CACHE_DIR=FOLDER)"
        )


@contextmanager
def compiling_only(cache: Path, tell: Tell | None = None) -> Iterator[Compilers]:
    """Kernels that this thread launches inside are compiled by other processes, and not launched."""
    began = time.perf_counter()
    with Compilers(cache) as compilers:
        with noting_launches(compilers.submit):
            yield compilers
        for done in compilers.finished():
            if tell:
                tell(done, len(compilers.requests))
        left = compilers.left()
    for request in left:  # where no process could be started
        with suppress(Exception):  # whoever launches a kernel that cannot be compiled will see why
            compile_here(request)
        if tell:
            tell(len(compilers.requests) - len(left) + 1 + left.index(request), len(compilers.requests))
    log.info("%d kernels were compiled in %.1f s", len(compilers.requests), time.perf_counter() - began)


@contextmanager
def noting_launches(note: Callable[[Request], None]) -> Iterator[None]:
    """Kernels that this thread launches inside are handed to `note`, each once, and not launched."""
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction, MockTensor

    def stand_in(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(stand_in(v) for v in value)
        return MockTensor(value.dtype) if isinstance(value, Tensor) else value

    here, noted = threading.get_ident(), set[Request]()
    target = driver.active.get_current_target()
    _ONE_AT_A_TIME.acquire()
    launch, earlier_hook = JITFunction.run, knobs.runtime.jit_cache_hook

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() != here:
            return launch(self, *args, grid=grid, warmup=warmup, **options)
        named = {name: stand_in(value) for name, value in options.items()}
        return launch(self, *map(stand_in, args), grid=grid, warmup=True, **named)

    def hook(**facts: Any) -> bool | None:
        """Triton asks whether somebody else compiles: yes."""
        if threading.get_ident() != here:
            return earlier_hook(**facts) if earlier_hook else None
        function, specialization = facts["fn"], facts["compile"]["specialization_data"]
        gpu = (target.backend, target.arch, target.warp_size)
        request = Request(function.module, function.name, specialization, *gpu)
        if request not in noted:
            noted.add(request)
            note(request)
        return True

    JITFunction.run, knobs.runtime.jit_cache_hook = run, hook
    try:
        yield
    finally:
        JITFunction.run, knobs.runtime.jit_cache_hook = launch, earlier_hook
        _ONE_AT_A_TIME.release()


def _trace(model: GBiNet, config: DepthConfig, kinds: Sequence[MapKind], device: torch.device) -> None:
    """Call the network once for each kind, with tensors that have a shape but no data."""
    dtype = pick_precision(config.precision, device)
    # A copy: it packs its weights when they are asked for, and here they have no content. No graphs.
    ready = for_inference(copy.deepcopy(model) if model.ready else model, device, dtype, max_memory=0.0)
    network = getattr(ready, "network", ready)
    try:
        with ShapesOnly(device), torch.no_grad():
            for width, height, first_bins in kinds:
                # It would look at numbers, which are not there.
                network.first_bins = lambda *_, bins=first_bins: bins  # type: ignore[method-assign]
                camera = Camera(torch.eye(3), torch.eye(4), width, height)
                image = torch.empty(3, height, width, dtype=dtype, device=device)
                features = tiles.encode(ready, image, None)
                bounds = torch.empty(2)
                tiles.search(
                    ready, [features] * config.views, [camera] * config.views, bounds, None, config.stages
                )
    finally:
        vars(network).pop("first_bins", None)  # the network may be the caller's own


def _mark(model: GBiNet, config: DepthConfig, kinds: Sequence[MapKind], device: torch.device) -> Path:
    """A file in Triton's cache that says: done for this code, this network, these kinds, this GPU."""
    import triton

    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        with suppress(OSError):
            digest.update(path.read_bytes())
    facts = (triton.__version__, torch.__version__, torch.cuda.get_device_name(device), model.config, config)
    digest.update(repr((facts, sorted(kinds, key=repr))).encode())
    return Path(triton.knobs.cache.dir) / f"gbinet-{digest.hexdigest()}"
