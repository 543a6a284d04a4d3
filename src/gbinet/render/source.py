"""Training samples that are rendered during training, without a data set on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.render.assets import AssetLibrary
from gbinet.render.calibration import perturb
from gbinet.render.compose import make_scene
from gbinet.render.difficulties import OF_SAMPLES, Difficulties
from gbinet.render.rasterise import key_depth
from gbinet.render.rig import Habits, depth_range, draw_rig, draw_windows, in_unit, widened
from gbinet.render.scenery import RenderScene
from gbinet.render.seeding import generator, log_uniform
from gbinet.render.sensor import SensorConfig, expose
from gbinet.render.shade import SUPERSAMPLING, colour_and_keys, render_depth
from gbinet.render.visibility import visible_in_sources
from gbinet.scenes.batch import Batch


@dataclass(frozen=True)
class RenderConfig:
    """What is rendered for training."""

    width: int = 640
    height: int = 512
    views: int = 5  # reference and sources
    seed: int = 0  # everything follows from it
    assets: Path | None = None  # folder of objects and textures; none: procedural only
    asset_share: float = 0.8  # share of scenes that use the assets, where there are any
    samples_per_scene: int = 8  # how often a scene is used before it is replaced
    scenes_at_once: int = 8  # samples in a row come from this many different scenes
    kinds: tuple[str, ...] = ()  # scene kinds in use; empty: all, in their usual shares
    dtu_like: bool = False  # only narrow views from 0.5 to 0.9 m, in millimetres
    zoom: float = 1.0  # samples are windows of images up to this many times as large; 1: whole images
    least_zoom: float = 1.0  # ... and at least this many times
    life: float = 0.0  # share of scenes with difficulties; these are of all kinds, dtu_like or not
    difficulties: Difficulties = field(default_factory=Difficulties)  # of such scenes and their samples
    visibility: bool = False  # also compute which sources see what the reference sees
    sensor: SensorConfig = field(default_factory=SensorConfig)

    def __post_init__(self) -> None:
        if min(self.width, self.height, self.views, self.samples_per_scene, self.scenes_at_once) < 1:
            raise InputError("width, height, views, samples_per_scene and scenes_at_once must be at least 1")
        if not 1 <= self.least_zoom <= self.zoom <= 16:
            raise InputError(
                "zoom must lie between 1 and 16 and least_zoom not above it, "
                f"got {self.zoom} and {self.least_zoom}"
            )
        if not 0 <= self.life <= 1:
            raise InputError(f"life is a share from 0 to 1, got {self.life}")


@dataclass(frozen=True)
class Sample:
    """One rendered reference view with its sources."""

    images: Tensor  # [V, 3, H, W] float32 in [0, 1]
    cameras: Camera  # [V] float32
    depth_range: Tensor  # [2] float32
    depth: Tensor  # [H, W] float32 of the reference view; 0 = nothing there
    name: str
    visible: Tensor | None = None  # [V - 1, H, W] bool: whether a source sees the point; optional
    difficulties: tuple[str, ...] = ()  # of the scene and of the sample

    def batch(self) -> Batch:
        """A batch of one."""
        return collate([self])


def collate(samples: Sequence[Sample]) -> Batch:
    """A batch of samples of one size."""
    depth = torch.stack([s.depth for s in samples])
    visible = [s.visible for s in samples if s.visible is not None]
    return Batch(
        images=torch.stack([s.images for s in samples]),
        cameras=Camera.stack([s.cameras for s in samples]),
        depth_range=torch.stack([s.depth_range for s in samples]),
        depth=depth,
        mask=depth > 0,
        names=tuple(s.name for s in samples),
        visible=torch.stack(visible) if visible else None,
        complete=torch.ones(len(samples), dtype=torch.bool, device=depth.device),
    )


class RenderedSource:
    """An endless, indexed stream of samples: sample i depends on the config and i only."""

    def __init__(self, config: RenderConfig, device: torch.device | str = "cpu", stride: int = 1) -> None:
        self.config = config
        self.stride = stride  # between the batches that this process asks for: processes take turns
        self.device = torch.device(device)
        self.library = None if config.assets is None else AssetLibrary.open(config.assets, self.device)
        if self.library is not None and self.device.type == "cuda":
            self.library.preload()  # so that no training step waits for a file
        self.make_ahead = self.device.type == "cuda"  # build scenes of the next batch during this one
        self._scenes: dict[int, RenderScene] = {}  # by slot
        self._numbers: dict[int, int] = {}  # by slot
        self._pending: dict[int, Future[RenderScene]] = {}  # by number: built while a batch was rendered

    def scene_number(self, index: int) -> tuple[int, int]:
        """Slot and number of the scene that sample `index` uses. Slots change scenes at different times, so
        that building scenes is spread evenly."""
        slots, uses = self.config.scenes_at_once, self.config.samples_per_scene
        slot = index % slots
        turn = index // slots + slot * uses // slots
        return slot, turn // uses * slots + slot

    def scene(self, number: int) -> RenderScene:
        config = self.config
        rng = generator(config.seed, "which", number)
        lifelike = generator(config.seed, "life", number).random() < config.life
        kind = str(rng.choice(list(config.kinds))) if config.kinds else None
        kind = "table" if config.dtu_like and not lifelike else kind
        library = self.library if rng.random() < config.asset_share else None
        seed = int(rng.integers(1 << 31))
        return make_scene(seed, library, kind, self.device, config.difficulties if lifelike else None)

    def scene_of(self, index: int) -> RenderScene:
        """The scene of sample `index`; built anew only where another sample's has its slot."""
        slot, number = self.scene_number(index)
        if self._numbers.get(slot) != number:
            pending = self._pending.pop(number, None)
            self._scenes[slot] = self.scene(number) if pending is None else pending.result()
            self._numbers[slot] = number
        return self._scenes[slot]

    def sample(self, index: int) -> Sample:
        return render_sample(self.scene_of(index), (self.config.seed, index), self.config)

    def batch(self, index: int, batch_size: int) -> Batch:
        """Samples index * batch_size and following."""
        first = index * batch_size
        indices = range(first, first + batch_size)
        next_first = first + self.stride * batch_size
        with self._make_ahead(indices, range(next_first, next_first + batch_size)):
            return collate([self.sample(i) for i in indices])

    @contextmanager
    def _make_ahead(self, samples: range, following: range) -> Iterator[None]:
        """While the block renders `samples`, a second thread builds what is new in the following ones.

        Building is the host's work and rendering the GPU's; on a CPU both would want the same cores. The same
        CUDA stream takes what both launch, so that a scene is complete before it is rendered.
        """
        if not self.make_ahead or not self._scenes:  # the first time, one thread compiles the kernels
            yield
            return
        now, later = ({self.scene_number(i)[1] for i in indices} for indices in (samples, following))
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

        @torch.no_grad()
        def build(number: int) -> RenderScene:
            with torch.cuda.stream(stream):
                return self.scene(number)

        with ThreadPoolExecutor(1) as builder:  # ends with the block
            self._pending = {n: made for n, made in self._pending.items() if n in now}
            for number in sorted(later - now - set(self._numbers.values())):
                self._pending[number] = builder.submit(build, number)
            yield

    def batches(self, batch_size: int, first: int = 0) -> Iterator[Batch]:
        index = first
        while True:
            yield self.batch(index, batch_size)
            index += 1


@torch.no_grad()
def render_sample(scene: RenderScene, key: tuple[int, int], config: RenderConfig) -> Sample:
    """Draw cameras, range and sensor for the key, and render."""
    lifelike = scene.difficulties is not None
    amounts = config.difficulties.drawn(OF_SAMPLES, *key) if lifelike else {}
    rng = generator(*key, "sample")
    dtu_like = True if config.dtu_like and not lifelike else None
    size = (config.width, config.height)
    rig = draw_rig(rng, scene.kind, scene.layout, config.views, *size, dtu_like, Habits.of(amounts))
    whole = rig.cameras[:1]
    sizes = amounts.get("sizes", 1.0)
    if max(config.zoom, sizes) > 1:
        rig = draw_windows(generator(*key, "zoom"), rig, config.zoom, config.least_zoom, sizes)
    cameras = rig.cameras.to(scene.device, torch.float32)
    depth, _ = render_depth(scene, cameras[:1])
    light, keys = colour_and_keys(scene, cameras)
    network_cameras = cameras  # what the network is given
    if "calibration" in amounts:
        largest = amounts["calibration"]
        wrong = perturb(generator(*key, "calibration"), rig.cameras, depth[0], rig.distance, largest)
        network_cameras, light = wrong.cameras.to(dtype=torch.float32), wrong.distorted(light)
    sensor = config.sensor.under(amounts)
    sample_depth = key_depth(keys[:, ::SUPERSAMPLING, ::SUPERSAMPLING]) if sensor.defocus else None
    images = expose(light, generator(*key, "sensor"), sensor, sample_depth)
    # The range is of the whole image, of which a window shows a part; at a low resolution, which is enough.
    content = depth if config.zoom == 1 else render_depth(scene, _smaller(whole).to(dtype=torch.float32))[0]
    limits = depth_range(generator(*key, "range"), content[0], rig)
    if "range" in amounts:
        limits = widened(generator(*key, "wider"), limits, amounts["range"])
    visible = visible_in_sources(cameras, depth[0], key_depth(keys)) if config.visibility else None
    scale = 1000.0 if rig.dtu_like else log_uniform(rng, 0.01, 2000)
    return Sample(
        images=images,
        cameras=in_unit(network_cameras, scale),
        depth_range=limits * scale,
        depth=depth[0] * scale,
        name=f"{scene.kind}-{scene.seed}-{key[1]}",
        visible=visible,
        difficulties=(*(scene.difficulties or ()), *amounts),
    )


def _smaller(cameras: Camera) -> Camera:
    return cameras.resized(max(cameras.width // 4, 16), max(cameras.height // 4, 16))
