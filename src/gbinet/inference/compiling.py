"""Compiles the kernels that a scene will need, in many processes at once, before they are launched.

The network is called with tensors that have a shape but no data. Kernels that it would launch are compiled
instead, and nothing runs on the device. Without this, each kernel is compiled at its first launch.
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
CompileProgress = Callable[[int, int], None]  # kernels done, kernels in all
_MOST_KINDS = 4  # of depth maps; the kernels of others are compiled at their first launch
_SAMPLED = 50  # views that are looked at to find the kinds
_ONE_AT_A_TIME = threading.Lock()  # held while Triton is patched to record launches


class MapKind(NamedTuple):
    """What the kernels of a depth map depend on, for one network."""

    width: int
    height: int
    first_bins: int | None


def has_kernels(device: torch.device) -> bool:
    """Whether a device uses kernels that have to be compiled."""
    return ops.usable(torch.empty(0, device=device))


def kinds_of(scene: Scene, model: GBiNet, config: DepthConfig) -> list[MapKind]:
    """The most frequent kinds of a scene's depth maps; none for another kind of network."""
    if type(model) is not GBiNet:
        return []
    counts: Counter[MapKind] = Counter()
    for view in scene.views[:: max(1, len(scene.views) // _SAMPLED)]:
        near_far = config.depth_range or view.depth_range
        if near_far is None or not view.sources:
            continue
        originals = [view.camera, *(scene.views[i].camera for i in view.best_sources(config.views - 1))]
        cameras = [camera.resized(*working_size(camera, config.max_size)) for camera in originals]
        bounds = torch.tensor([[near_far.near, near_far.far]])
        first_bins = model.first_bins(tiles.camera_batch(cameras, torch.device("cpu")), bounds)
        counts[MapKind(cameras[0].width, cameras[0].height, first_bins)] += 1
    return [kind for kind, _ in counts.most_common(_MOST_KINDS)]


def compile_kernels(
    model: GBiNet,
    config: DepthConfig,
    kinds: Sequence[MapKind],
    others: Callable[[], object],  # launches the kernels that are needed besides those of the network
    progress: CompileProgress | None = None,
) -> None:
    """Compile for depth maps of these kinds, unless that was done before on this machine."""
    device = pick_device(config.device)
    if type(model) is not GBiNet or not kinds or not has_kernels(device):
        return
    try:
        record = _record(model, config, kinds, device)
        if record.exists():
            threading.Thread(target=load_kernels, args=(record, device), name="kernels", daemon=True).start()
            return
        check_cache(record.parent)
        with locked(
            record.parent, lambda: progress(0, 1) if progress else None
        ):  # processes that start together compile once
            if record.exists():
                return
            with torch.cuda.device(device), compiling_only(record.parent, progress) as compilers:
                others()
                _trace(model, config, kinds, device)
            write_json(record, {"kernels": compilers.requests})
    except UnwritableCacheError:
        raise
    except Exception as error:  # kernels are then compiled at their first launch
        log.info("kernels are compiled when they are needed (%s)", error)


def load_kernels(record: Path, device: torch.device) -> None:
    """Load kernels that an earlier run has compiled onto the GPU; in a thread, beside other preparations."""
    with suppress(Exception), torch.cuda.device(device):  # kernels are then loaded at their first launch
        for fields in read_record(record)["kernels"]:
            compile_here(Request(*fields))._init_handles()


class UnwritableCacheError(GBiNetError):
    """The folder for compiled kernels cannot be written to."""


def check_cache(cache: Path) -> None:
    """Raise a clear error where Triton would fail at the first kernel."""
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UnwritableCacheError(
            f"{cache}: compiled kernels of the GPU are kept in this folder, and it cannot be written to; "
            "name another one in the environment (TRITON_CACHE_DIR=FOLDER)"
        )


@contextmanager
def compiling_only(cache: Path, progress: CompileProgress | None = None) -> Iterator[Compilers]:
    """Kernels that this thread launches inside are compiled by other processes, and not launched."""
    began = time.perf_counter()
    with Compilers(cache) as compilers:
        with recording_launches(compilers.submit):
            yield compilers
        for done in compilers.finished():
            if progress:
                progress(done, len(compilers.requests))
        left = compilers.left()
    for request in left:  # where no process could be started
        with suppress(Exception):  # raised again where the kernel is launched
            compile_here(request)
        if progress:
            progress(len(compilers.requests) - len(left) + 1 + left.index(request), len(compilers.requests))
    log.info("%d kernels were compiled in %.1f s", len(compilers.requests), time.perf_counter() - began)


@contextmanager
def recording_launches(record: Callable[[Request], None]) -> Iterator[None]:
    """Call `record` once for each kernel that this thread launches inside, instead of launching it."""
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction, MockTensor

    def stand_in(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(stand_in(v) for v in value)
        return MockTensor(value.dtype) if isinstance(value, Tensor) else value

    this_thread, recorded = threading.get_ident(), set[Request]()
    target = driver.active.get_current_target()
    _ONE_AT_A_TIME.acquire()
    launch, earlier_hook = JITFunction.run, knobs.runtime.jit_cache_hook

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() != this_thread:
            return launch(self, *args, grid=grid, warmup=warmup, **options)
        named = {name: stand_in(value) for name, value in options.items()}
        return launch(self, *map(stand_in, args), grid=grid, warmup=True, **named)

    def hook(**facts: Any) -> bool | None:
        """Triton's question whether to skip compiling: yes."""
        if threading.get_ident() != this_thread:
            return earlier_hook(**facts) if earlier_hook else None
        function, specialization = facts["fn"], facts["compile"]["specialization_data"]
        gpu = (target.backend, target.arch, target.warp_size)
        request = Request(function.module, function.name, specialization, *gpu)
        if request not in recorded:
            recorded.add(request)
            record(request)
        return True

    JITFunction.run, knobs.runtime.jit_cache_hook = run, hook
    try:
        yield
    finally:
        JITFunction.run, knobs.runtime.jit_cache_hook = launch, earlier_hook
        _ONE_AT_A_TIME.release()


def _trace(model: GBiNet, config: DepthConfig, kinds: Sequence[MapKind], device: torch.device) -> None:
    """Call the network once for each kind of depth map, with tensors that have a shape but no data."""
    dtype = pick_precision(config.precision, device)
    # A copy, because weights are packed when first used, and here they have no data. No CUDA graphs.
    ready = for_inference(copy.deepcopy(model) if model.ready else model, device, dtype, max_memory=0.0)
    network = getattr(ready, "network", ready)
    try:
        with ShapesOnly(device), torch.no_grad():
            for width, height, first_bins in kinds:
                # The method would read values, and there are none.
                network.first_bins = lambda *_, bins=first_bins: bins  # type: ignore[method-assign]
                camera = Camera(torch.eye(3), torch.eye(4), width, height)
                image = torch.empty(3, height, width, dtype=dtype, device=device)
                features = tiles.encode(ready, image, None)
                bounds = torch.empty(2)
                tiles.search(
                    ready, [features] * config.views, [camera] * config.views, bounds, None, config.stages
                )
    finally:
        vars(network).pop("first_bins", None)  # the network may be the caller's


def _record(model: GBiNet, config: DepthConfig, kinds: Sequence[MapKind], device: torch.device) -> Path:
    """The file in Triton's cache that lists the kernels for this code, network, GPU and these kinds."""
    import triton

    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        with suppress(OSError):
            digest.update(path.read_bytes())
    facts = (triton.__version__, torch.__version__, torch.cuda.get_device_name(device), model.config, config)
    digest.update(repr((facts, sorted(kinds, key=repr))).encode())
    return Path(triton.knobs.cache.dir) / f"gbinet-{digest.hexdigest()}"
