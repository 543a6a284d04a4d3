"""Time and memory of one depth map, measured as in papers: all views encoded, batch 1, random images."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import GBiNetError, InputError
from gbinet.inference.device import Precision, peak_memory_mib, pick_device, pick_precision
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet


@dataclass(frozen=True)
class Resources:
    """Time and memory of one depth map."""

    width: int
    height: int
    views: int
    milliseconds: float  # median
    peak_mib: float  # CUDA: allocated, weights and images included; CPU: growth of the process


def views_in_a_row(
    count: int, width: int, height: int, device: torch.device
) -> tuple[Tensor, Camera, Tensor]:
    """Random images [1, V, 3, H, W] with DTU-like cameras side by side [1, V], range 425 to 935 [1, 2]."""
    torch.manual_seed(0)
    images = torch.rand(1, count, 3, height, width, device=device)
    focal = 2892.0 * width / 1600
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], device=device)
    pose = torch.eye(4, device=device).repeat(count, 1, 1)
    pose[:, 0, 3] = torch.arange(count, device=device) * 60.0
    camera = Camera(K.expand(1, count, 3, 3), pose[None], width, height)
    return images, camera, torch.tensor([[425.0, 935.0]], device=device)


def measure(run: Callable[[], object], device: torch.device, repeat: int) -> tuple[float, float]:
    """Median milliseconds of a call after warm-up, and the peak in MiB (see Resources)."""
    before = peak_memory_mib()
    for _ in range(2):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else peak_memory_mib() - before
    return statistics.median(times), peak


@torch.inference_mode()
def resources_of_depth_map(
    weights: str | None, device: str, precision: Precision, width: int, height: int, views: int, repeat: int
) -> Resources:
    """Measure in this process; a second peak on a CPU needs in_own_process."""
    if min(width, height) < 8 or views < 2 or repeat < 1:
        raise InputError(
            "need at least 2 views, 8x8 pixels and one repetition, "
            f"got {views} views of {width}x{height}, {repeat} times"
        )
    torch_device = pick_device(device)
    network = prepare(GBiNet.from_pretrained(weights), torch_device, pick_precision(precision, torch_device))
    inputs = views_in_a_row(views, width, height, torch_device)
    milliseconds, peak = measure(lambda: network(*inputs), torch_device, repeat)
    return Resources(width, height, views, milliseconds, peak)


def in_own_process(
    weights: str | None, device: str, precision: Precision, width: int, height: int, views: int, repeat: int
) -> Resources:
    """Measure in a new process, because the peak of a process never falls."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        task = pool.submit(resources_of_depth_map, weights, device, precision, width, height, views, repeat)
        try:
            return task.result()
        except BrokenExecutor as error:  # the system killed it
            raise GBiNetError(
                f"the process that measured {views} views of {width}x{height} was ended, most likely for "
                "lack of memory; give a smaller --size or fewer --views"
            ) from error
