"""Compiles kernels before they are needed; while structure from motion runs, if there is one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gbinet.camera import Camera
from gbinet.errors import GBiNetError
from gbinet.formats.image import image_size
from gbinet.fusion.judging import rehearse
from gbinet.inference.compilers import hash_triton
from gbinet.inference.compiling import CompileProgress, MapKind, compile_kernels, has_kernels, kinds_of
from gbinet.inference.device import pick_device
from gbinet.inference.tiles import working_size
from gbinet.model.gbinet import GBiNet
from gbinet.progress import StepProgress
from gbinet.scene import Scene
from gbinet.scenes.kinds import recognise
from gbinet.scenes.photos import list_photos

if TYPE_CHECKING:
    from gbinet.pipeline.reconstruct import ReconstructConfig


def prepare_kernels(
    scene: Scene, model: GBiNet, config: ReconstructConfig, progress: StepProgress | None
) -> None:
    """Compile the kernels for the depth maps of a scene and their fusion, unless that was done before."""
    if not has_kernels(pick_device(config.depth.device)):
        return

    def tell(done: int, total: int) -> None:
        if progress:
            progress("kernels", done, total, "compiled, once for this machine")

    _compile(kinds_of(scene, model, config.depth), model, config, tell)


@contextmanager
def preparing_beside(source: Scene | str | Path, model: GBiNet, config: ReconstructConfig) -> Iterator[None]:
    """While the block finds the poses of bare photos, compile for maps of the size of the first photo."""
    if has_kernels(pick_device(config.depth.device)):
        threading.Thread(target=hash_triton, name="triton", daemon=True).start()  # half a second, needed soon
    kind = None if isinstance(source, Scene) else _first_photo(Path(source), config)
    thread, cancelled = ThreadPoolExecutor(1, "kernels"), threading.Event()

    def check_cancelled(done: int, total: int) -> None:
        if cancelled.is_set():
            raise InterruptedError("cancelled")

    if kind is not None:
        thread.submit(_compile, [kind], model, config, check_cancelled)
    try:
        yield
    except BaseException:  # report the error now, not when all kernels are compiled
        cancelled.set()
        thread.shutdown(wait=False, cancel_futures=True)
        raise
    thread.shutdown()


def _compile(
    kinds: list[MapKind], model: GBiNet, config: ReconstructConfig, tell: CompileProgress | None = None
) -> None:
    device = pick_device(config.depth.device)
    compile_kernels(model, config.depth, kinds, lambda: rehearse(config.fusion, device), tell)


def _first_photo(folder: Path, config: ReconstructConfig) -> MapKind | None:
    """The likely kind of the depth maps of bare photos; None for other folders."""
    try:
        if not has_kernels(pick_device(config.depth.device)):
            return None
        kind = recognise(folder)
        if kind.posed if kind is not None else config.camera != "per-folder":
            return None
        width, height = image_size(list_photos(folder, subfolders=True)[0])
    except (GBiNetError, OSError, IndexError):  # opening the scene reports what is wrong
        return None
    camera = Camera(torch.eye(3), torch.eye(4), width, height)
    return MapKind(*working_size(camera, config.depth.max_size), None)
