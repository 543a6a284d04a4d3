"""Depth maps of a whole scene: every view in turn as reference, each image read and encoded once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import GBiNetError, InputError, SceneError, check_positive
from gbinet.formats.depth_files import write_depth_map
from gbinet.formats.image import read_image, shrunk
from gbinet.inference import tiles
from gbinet.inference.depth_run import DepthRun, Keeper, NoKeeper
from gbinet.inference.device import (
    Precision,
    give_back_memory,
    is_out_of_memory,
    pick_device,
    pick_precision,
)
from gbinet.inference.feature_cache import FeatureCache
from gbinet.inference.finished import FinishedMaps, making_maps
from gbinet.inference.graphs import GraphedNetwork, for_inference
from gbinet.inference.network_clock import NetworkClock
from gbinet.inference.prepare import is_packed
from gbinet.model.gbinet import GBiNet
from gbinet.ops.transfer import Computed, side_stream, to_device
from gbinet.progress import Progress
from gbinet.scene import DepthRange, Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.neighbours import neighbours_first_order

T = TypeVar("T")
log = logging.getLogger(__name__)

# Bytes of working memory per pixel and bin in float32; half in half precision. With 4 bins, 600 per pixel
# were measured on a CPU, and 280 with the fused kernels, which hold fewer volumes at once (6 bins: 440;
# docs/benchmarks/speed.md).
_SEARCH_BYTES = 700 / 4
_FUSED_SEARCH_BYTES = 320 / 4


@dataclass(frozen=True)
class DepthConfig:
    """How depth maps are computed. The options that change them are stored in their folder."""

    max_size: int = 1152  # longer side of the images in px; larger ones are resized, smaller ones stay
    views: int = 5  # N: images per depth map, the reference included
    depth_range: DepthRange | None = None  # for all views, instead of each view's own
    stages: int | None = None  # search stages; None = what the weights were trained for
    # auto = float16 on CUDA; bfloat16, in a part of the network, on CPUs that have it; float32 elsewhere
    precision: Precision = "auto"
    device: str = "auto"  # auto = CUDA, then MPS, then CPU
    max_memory: float | None = None  # GiB on the computing device; images are tiled to stay below
    cache_memory: float = 4.0  # GiB of features kept for reuse (on the GPU if they fit there, else in RAM)

    def __post_init__(self) -> None:
        if self.max_size < 64:
            raise InputError(f"images must be at least 64 px long (--max-size), got {self.max_size}")
        if self.views < 2:
            raise InputError(f"--views must be at least 2 (a reference and a source), got {self.views}")
        if self.stages is not None and self.stages < 1:
            raise InputError(f"--stages must be at least 1, got {self.stages}")
        if self.max_memory is not None:
            check_positive("--max-memory (GiB)", self.max_memory)
        check_positive("cache_memory (GiB)", self.cache_memory)


def estimate_depths(
    scene: Scene,
    model: GBiNet | GraphedNetwork,
    out: str | Path,
    config: DepthConfig | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    keeper: Keeper | None = None,
    accepted: Callable[[], None] | None = None,
) -> DepthRun:
    """Write a depth map for every view of a scene.

    Finished depth maps are kept as long as their photos, cameras, ranges, weights and settings are the same.
    A view that cannot be done (broken image, no neighbour) is reported and left out.

    Args:
        scene: What `load_scene` returned; two views or more.
        model: The network, e.g. `GBiNet.from_pretrained()`.
        out: Folder for `<view>.npz` with depth and confidence [H, W]. One run at a time writes to it.
        config: Image size, views per depth map, device, memory.
        overwrite: Replace depth maps that were made with other settings, which are an error otherwise.
        progress: Called with (done, total, what).
        keeper: Receives maps and photos in memory as they are computed, for fusion.
        accepted: Called before the first map is computed, when it is clear that `out` can be written to.

    Returns:
        Which views were computed, kept and left out, with warnings and times.

    Raises:
        SceneError: If the scene has fewer than two photos.

    Example:
        >>> scene, model = gbinet.load_scene("my-scene"), gbinet.GBiNet.from_pretrained()
        >>> len(gbinet.estimate_depths(scene, model, "depths").computed)
        5
    """
    out, config = Path(out), config or DepthConfig()
    with making_maps(out, scene, model, config, overwrite=overwrite, accepted=accepted) as finished:
        return DepthWorker(scene, model, config, finished, keeper).run(progress)


def depth_order(scene: Scene) -> list[int]:
    """All views, neighbours close together: features are used again while they are in the cache, and fusion,
    which compares a view with its neighbours, can follow closely."""
    return neighbours_first_order([view.best_sources() for view in scene.views])


def _warn(view: int, problem: str) -> None:
    log.warning(problem)


class _UnreadableError(GBiNetError):
    """A photo cannot be read."""


class DepthWorker:
    """Computes depth maps: the state that reading, encoding, searching and writing share."""

    def __init__(
        self,
        scene: Scene,
        model: GBiNet | GraphedNetwork,
        config: DepthConfig,
        finished: FinishedMaps,
        keeper: Keeper | None = None,
        on_unreadable: Callable[[int, str], None] | None = None,  # view, what is wrong; may raise
    ) -> None:
        self.scene, self.config, self.finished = scene, config, finished
        self.folder = DepthFolder(scene, finished.folder)
        self.keeper, self._on_unreadable = keeper or NoKeeper(), on_unreadable or _warn
        self.sources = [view.best_sources() for view in scene.views]
        self.device = pick_device(config.device)
        self.dtype = pick_precision(config.precision, self.device)
        # Type of images and features: on a CPU, only a part of the network has half precision (prepare.py).
        self.maps_dtype = torch.float32 if self.device.type == "cpu" else self.dtype
        self.model = for_inference(model, self.device, self.dtype, config.max_memory)
        self.result = DepthRun(device=str(self.device), precision=str(self.dtype).removeprefix("torch."))
        self.result.warnings += finished.notes
        self.clock = NetworkClock(self.device)
        self.tile = self._first_tile()
        self.result.tile = self.tile
        storage = self._cache_storage()
        self.cache = FeatureCache(self._encode, int(config.cache_memory * 2**30), storage, self.device)
        self.images: dict[int, Future[Tensor]] = {}  # view -> its photo, which is being read
        self.broken: dict[int, str] = {}  # view -> why its photo cannot be read
        # With the network on the CPU, one reader is enough and decodes only one large photo at a time.
        self.reader = ThreadPoolExecutor(1 if self.device.type == "cpu" else 4, "read")
        self.writer = ThreadPoolExecutor(1 if self.device.type == "cpu" else 4, "write")
        self.write_stream = side_stream(self.device)

    # ---- the loop ----

    def run(self, progress: Progress | None) -> DepthRun:
        began = time.perf_counter()
        order = depth_order(self.scene)
        todo = [i for i in order if i not in self.finished.kept]
        self.result.kept = [self.scene.views[i].name for i in order if i in self.finished.kept]
        done = len(order) - len(todo)
        for i in self.finished.kept:
            self.keeper.settled(i)
        for i in todo:
            if not self._obstacle(i):
                self.cache.expect((i, *self.sources[i][: self.config.views - 1]))
        writes: list[Future[Path]] = []
        try:
            for position, index in enumerate(todo):
                write = self.begin(index, todo[position + 1 : position + 2])
                done += 1
                if write is not None:
                    writes.append(write)
                while len(writes) > 6 or (writes and writes[0].done()):
                    writes.pop(0).result()  # raises what writing raised
                if progress:
                    progress(done, len(order), self.scene.views[index].name)
            for write in writes:
                write.result()
        finally:
            self.close()
        self._sum_up(time.perf_counter() - began, order)
        return self.result

    def begin(self, index: int, following: Sequence[int]) -> Future[Path] | None:
        """Compute a view's map and start writing it; None and an entry in `failed` if that is not possible.

        Meanwhile, the photos of the `following` views are read.
        """
        for reference in (index, *following):
            if not self._obstacle(reference):
                for view in (reference, *self.sources[reference][: self.config.views - 1]):
                    self._read_ahead(view)
        depth_map = self._depth_map(index)
        if depth_map is None:
            self.keeper.settled(index)
            return None
        self.keeper.keep_map(index, depth_map)
        return self.writer.submit(self._write, index, depth_map, Computed(depth_map.depth))

    def close(self) -> None:
        """Finish writing; cancel reading."""
        self.reader.shutdown(cancel_futures=True)
        self.writer.shutdown()

    def _depth_map(self, index: int) -> DepthMap | None:
        """The depth map of a view, or None and an entry in `failed`."""
        view = self.scene.views[index]
        near_far, obstacle = self._near_far(index), self._obstacle(index)
        if near_far is None or obstacle:
            self.result.failed[view.name] = obstacle
            return None
        features: list[tiles.Features] = []
        cameras: list[Camera] = []
        tried = 0
        for candidate in (index, *self.sources[index]):
            if len(features) == self.config.views:
                break
            tried += 1
            if tried > self.config.views:  # instead of a neighbour that cannot be read
                self.cache.expect([candidate])
            maps = self._features(candidate)
            if maps is not None:
                features.append(maps)
                cameras.append(self._camera(candidate))
            elif candidate == index:
                self.result.failed[view.name] = self.broken[index]
                return None
        if len(features) < 2:
            self.result.failed[view.name] = "none of its neighbours can be read"
            return None
        depth_map = self._search(features, cameras, near_far)
        return replace(depth_map, made_by=self.finished.made_by(index, tried))

    # ---- steps ----

    def _near_far(self, index: int) -> DepthRange | None:
        return self.config.depth_range or self.scene.views[index].depth_range

    def _obstacle(self, index: int) -> str:
        """Why a view cannot have a depth map, apart from unreadable photos; empty if it can."""
        if self._near_far(index) is None:
            return "its depth range is unknown: give --depth-range NEAR FAR"
        return "" if self.sources[index] else "no other photo shows enough of the same surface"

    def _camera(self, index: int) -> Camera:
        camera = self.scene.views[index].camera
        return camera.resized(*tiles.working_size(camera, self.config.max_size))

    def _read(self, index: int) -> Tensor:
        """[H, W, 3] uint8 on the CPU, at the working size. (Bytes are copied to a GPU faster than floats.)"""
        view, camera = self.scene.views[index], self._camera(index)
        pixels = read_image(view.image_path)
        if pixels.shape[:2] != (view.camera.height, view.camera.width):
            raise SceneError(
                f"{view.image_path}: is {pixels.shape[1]}x{pixels.shape[0]}, "
                f"its camera says {view.camera.width}x{view.camera.height}"
            )
        return torch.from_numpy(shrunk(pixels, (camera.width, camera.height)))

    def _read_ahead(self, index: int) -> None:
        if index not in self.cache and index not in self.images and index not in self.broken:
            self.images[index] = self.reader.submit(self._read, index)

    def _features(self, index: int) -> tiles.Features | None:
        """Features of a view, or None if its image is broken."""
        if index in self.broken:
            return None
        try:
            return self.cache.get(index)
        except _UnreadableError as error:
            self._on_unreadable(index, f"{error}; the view is left out")
            self.broken[index] = str(error)
            return None

    def _encode(self, index: int) -> tiles.Features:
        self._read_ahead(index)
        try:
            on_cpu = self.images.pop(index).result()  # [H, W, 3]
        except (GBiNetError, OSError) as error:  # only errors of reading this photo, not of the network
            raise _UnreadableError(str(error)) from error
        pixels = to_device(on_cpu, self.device)
        self.keeper.keep_photo(index, pixels)
        image = (pixels.permute(2, 0, 1) / 255).to(self.maps_dtype)
        return self._within_memory(lambda tile: tiles.encode(self.model, image, tile))

    def _search(
        self, features: list[tiles.Features], cameras: list[Camera], near_far: DepthRange
    ) -> DepthMap:
        bounds = torch.tensor([near_far.near, near_far.far])
        depth, confidence = self._within_memory(
            lambda tile: tiles.search(self.model, features, cameras, bounds, tile, self.config.stages)
        )
        if self.device.type != "cuda":  # others cannot be used by several threads
            depth, confidence = depth.cpu(), confidence.cpu()
        return DepthMap(depth, cameras[0], confidence)  # on CUDA, copied when it is written

    def _write(self, index: int, depth_map: DepthMap, computed: Computed) -> Path:
        path = self.folder.path(index)
        view = self.scene.views[index]
        with torch.cuda.stream(self.write_stream):
            ready = computed.wait_for(depth_map)
            write_depth_map(path, ready, (view.original_path or view.image_path).name)
        self.result.computed.append(view.name)
        self.keeper.settled(index)
        return path

    # ---- memory ----

    @torch.inference_mode()
    def _within_memory(self, compute: Callable[[int | None], T]) -> T:
        """Run a network call; if memory runs out, halve the tile and try again."""
        while True:
            try:
                with self.clock.running():
                    result = compute(self.tile)
                self.result.network_seconds += self.clock.taken()
                return result
            except (RuntimeError, MemoryError, OSError) as error:
                if not is_out_of_memory(error):
                    raise
            self._shrink_tile()

    def _shrink_tile(self) -> None:
        largest = max(
            max(self._camera(i).width, self._camera(i).height) for i in range(len(self.scene.views))
        )
        smaller = self._round_tile((self.tile or largest) / 2)
        if self.tile is not None and smaller >= self.tile:
            raise GBiNetError(
                f"not enough memory on {self.device} even for tiles of {self.tile} px: "
                "use smaller images (--max-size), fewer views (--views) or a machine with more"
            )
        self.tile = self.result.tile = smaller
        self.result.warnings.append(
            f"ran out of memory on {self.device}: continuing with tiles of {smaller} px"
        )
        log.warning(self.result.warnings[-1])
        if isinstance(self.model, GraphedNetwork):
            self.model.graphs.give_up()
        self.cache.clear()
        self.keeper.clear()
        give_back_memory(self.device)

    def _first_tile(self) -> int | None:
        """The largest tile that max_memory allows; None where whole images fit."""
        if self.config.max_memory is None:
            return None
        network = self.model.config
        type_factor = self.maps_dtype.itemsize / 4  # 1/2 in half precision
        cameras = [self._camera(i) for i in range(len(self.scene.views))]
        pixels = max(c.width * c.height for c in cameras)
        floats = sum(c / s**2 for c, s in zip(network.channels, network.scales, strict=True))
        features = pixels * 4 * floats * type_factor * self.config.views
        available = self.config.max_memory * 2**30 - features
        per_pixel = (
            (_FUSED_SEARCH_BYTES if is_packed(self.model) else _SEARCH_BYTES) * network.bins * type_factor
        )
        if available > pixels * per_pixel:
            return None
        side = (max(available, 0) / per_pixel) ** 0.5
        tile = self._round_tile(side - 2 * tiles.OVERLAP)
        self.result.warnings.append(f"images are cut into tiles of {tile} px to stay below --max-memory")
        return tile

    def _round_tile(self, side: float) -> int:
        alignment = tiles.alignment(self.model.config)
        return max(tiles.SMALLEST, alignment, int(side) // alignment * alignment)

    def _cache_storage(self) -> torch.device:
        """The GPU, if three times the cache is free there and memory is not limited; else the CPU."""
        if self.device.type != "cuda" or self.config.max_memory is not None:
            return torch.device("cpu")
        free, _ = torch.cuda.mem_get_info(self.device)
        return self.device if free > 3 * self.config.cache_memory * 2**30 else torch.device("cpu")

    def _sum_up(self, seconds: float, order: Sequence[int]) -> None:
        position = {self.scene.views[index].name: number for number, index in enumerate(order)}
        self.result.computed.sort(key=position.__getitem__)  # threads finish in any order
        self.result.seconds = seconds
        self.result.network_seconds += self.clock.taken(wait=True)
        self.result.encoded = sum(self.cache.encoded.values())
        self.result.encoded_again = self.result.encoded - len(self.cache.encoded)
        self.result.check(self.scene)
