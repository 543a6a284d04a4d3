"""Scenes -> training samples: a reference view, its sources, its true depth."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gbinet.camera import Camera
from gbinet.errors import FormatError, GBiNetError, InputError, SceneError
from gbinet.formats.depth_files import read_depth
from gbinet.formats.image import read_image, read_mask
from gbinet.scene import Scene, View
from gbinet.scenes.batch import Batch
from gbinet.scenes.transforms import ColourJitter, Frame, centre_crop, cover, crop, resize_nearest

logger = logging.getLogger(__name__)

Size = tuple[int, int]  # width, height


@dataclass(frozen=True)
class SampleConfig:
    """How a sample is made. The steps are done in this order; one that is None is skipped.

    Attributes:
        num_views: Reference and sources together.
        random_sources: Draw sources from the best `candidates` instead of taking the best.
        candidates: How many sources are drawn from.
        resize: (width, height) in pixels: scale to cover this size and crop to it.
        centre_crop: (width, height) in pixels.
        random_crop: (width, height) in pixels: the same window in all views; cameras shift with it.
        jitter: Changes of colour, each view by itself.
        need_depth: Only references whose true depth is known.
        seed: Of all random choices, together with the epoch and the sample's number.

    Raises:
        InputError: If num_views is below 2 or candidates below 1.
    """

    num_views: int = 5
    random_sources: bool = False
    candidates: int = 10
    resize: Size | None = None
    centre_crop: Size | None = None
    random_crop: Size | None = None
    jitter: ColourJitter = field(default_factory=ColourJitter)
    need_depth: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_views < 2:
            raise InputError(f"a sample needs at least 2 views, got num_views={self.num_views}")
        if self.candidates < 1:
            raise InputError(f"sources are drawn from at least 1 candidate, got {self.candidates}")


def read_frame(view: View) -> Frame:
    """Read a view's image and, where it has them, its mask and true depth (resized to the image)."""
    image = torch.tensor(read_image(view.image_path)).permute(2, 0, 1)  # [3, H, W] uint8
    height, width = image.shape[1:]
    camera = view.camera
    if (camera.width, camera.height) != (width, height):
        raise FormatError(
            view.image_path, f"is {width}x{height}, its camera is for {camera.width}x{camera.height}"
        )
    mask = None if view.mask_path is None else torch.tensor(read_mask(view.mask_path, (width, height)))
    depth = None
    if view.depth_path is not None:
        depth = torch.from_numpy(read_depth(view.depth_path, view.depth_scale))
        rows, columns = depth.shape
        if abs(columns / width - rows / height) > 0.02 * columns / width:
            raise FormatError(
                view.depth_path, f"is {columns}x{rows}: another shape than its {width}x{height} image"
            )
        depth = resize_nearest(depth, width, height)
    return Frame(image, camera, depth, mask)


class MVSDataset(Dataset[Batch]):
    """Samples of one or many scenes, whatever they were loaded from. `dataset[i]` is a Batch of one.

    Random choices depend only on (seed, epoch, i): the same in one process, in many workers, and when a run
    is started again. Call `set_epoch` before each epoch; persistent workers see it too. A broken source
    view is replaced by the next best, a broken reference by the next sample; both are logged.

    Args:
        scenes: What `load_scene` returned.
        config: How a sample is made.
        read: Reads a view's image, mask and depth; another function may keep them in memory.

    Raises:
        SceneError: If no view of the scenes has source views and, where it is needed, true depth.

    Example:
        >>> import gbinet
        >>> scene = gbinet.load_scene("my-scene")
        >>> samples = gbinet.MVSDataset([scene], gbinet.SampleConfig(num_views=3, need_depth=False))
        >>> samples[0].images.shape  # [B, V, 3, H, W]
        torch.Size([1, 3, 3, 64, 96])
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        config: SampleConfig | None = None,
        read: Callable[[View], Frame] = read_frame,
    ) -> None:
        self.scenes = scenes
        self.config = config or SampleConfig()
        self.read = read
        self.samples = [
            (s, v)
            for s, scene in enumerate(scenes)
            for v, view in enumerate(scene.views)
            if view.sources and (view.depth_path is not None or not self.config.need_depth)
        ]
        if not self.samples:
            wanted = "source views and true depth" if self.config.need_depth else "source views"
            raise SceneError(f"none of the {len(scenes)} scenes has a view with {wanted}")
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def epoch(self) -> int:
        """The epoch that random choices depend on."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; persistent workers see it too."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        for attempt in range(10):
            number = (index + attempt) % len(self)
            try:
                return self._sample(number)
            except GBiNetError as error:
                logger.warning("sample %d is left out: %s", number, error)
                last = error
        raise SceneError(f"ten samples in a row, from {index} on, cannot be read; the last: {last}") from last

    def _sample(self, index: int) -> Batch:
        config = self.config
        rng = np.random.default_rng([config.seed, self.epoch, index])
        scene_index, view_index = self.samples[index]
        scene = self.scenes[scene_index]
        view = scene.views[view_index]
        if view.depth_range is None:
            raise SceneError(f"view {view.name} of scene {scene.name} has no depth range")
        reference = _fit(self.read(view), config, None)
        size = (reference.width, reference.height)
        frames = [reference, *self._sources(scene, view, size, rng)]
        if config.random_crop is not None:
            frames = _random_crop(frames, config.random_crop, rng)
        images = torch.stack([_to_float(frame.image) for frame in frames])  # [V, 3, H, W]
        images = config.jitter(images, rng)
        depth, mask = _target(frames[0])
        return Batch(
            images=images[None],
            cameras=Camera.stack([frame.camera for frame in frames]).to(dtype=torch.float32)[None],
            depth_range=torch.tensor([[view.depth_range.near, view.depth_range.far]]),
            depth=depth[None],
            mask=mask[None],
            names=(f"{scene.name}/{view.name}",),
        )

    def _sources(self, scene: Scene, view: View, size: Size, rng: np.random.Generator) -> list[Frame]:
        """num_views - 1 source frames of the reference's size; where there are too few, they repeat."""
        order = [scene.views[source.index] for source in view.sources]
        if self.config.random_sources:
            best = order[: self.config.candidates]
            # Views beyond the candidates only replace those that cannot be read.
            order = [best[i] for i in rng.permutation(len(best))] + order[self.config.candidates :]
        frames: list[Frame] = []
        for source in order:
            if len(frames) == self.config.num_views - 1:
                break
            try:
                picture_only = replace(source, depth_path=None, mask_path=None)
                frames.append(_fit(self.read(picture_only), self.config, size))
            except GBiNetError as error:
                logger.warning("source view %s of %s is left out: %s", source.name, scene.name, error)
        if not frames:
            raise SceneError(f"no source view of {scene.name}/{view.name} can be read")
        return [frames[i % len(frames)] for i in range(self.config.num_views - 1)]


def _fit(frame: Frame, config: SampleConfig, size: Size | None) -> Frame:
    """Resize and centre-crop as configured; then bring it to `size`, the reference's, if that is given."""
    if config.resize is not None:
        frame = cover(frame, *config.resize)
    if config.centre_crop is not None:
        frame = centre_crop(frame, *config.centre_crop)
    if size is not None and (frame.width, frame.height) != size:
        frame = cover(frame, *size)
    return frame


def _random_crop(frames: list[Frame], size: Size, rng: np.random.Generator) -> list[Frame]:
    width, height = size
    left = int(rng.integers(0, max(frames[0].width - width, 0) + 1))
    top = int(rng.integers(0, max(frames[0].height - height, 0) + 1))
    return [crop(frame, left, top, width, height) for frame in frames]


def _to_float(image: Tensor) -> Tensor:
    return image.float() / 255 if image.dtype == torch.uint8 else image.float()


def _target(reference: Frame) -> tuple[Tensor, Tensor]:
    """True depth [H, W] and where it counts [H, W]."""
    depth = reference.depth
    if depth is None:
        depth = torch.zeros(reference.height, reference.width)
    mask = depth > 0
    if reference.mask is not None:
        mask = mask & reference.mask
    return depth.float().contiguous(), mask
