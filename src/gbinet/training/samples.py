"""Where training samples come from: an endless stream of batches that can start at any step.

The batch of a step is a function of the seed, the step and the process only, so a resumed run sees what the
unbroken one would have seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from gbinet.cores import usable_cores
from gbinet.errors import GBiNetError, InputError
from gbinet.scene import Scene
from gbinet.scenes.batch import Batch, collate
from gbinet.scenes.dataset import MVSDataset, SampleConfig
from gbinet.scenes.transforms import ColourJitter
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import Processes

FULL_SIZE = (1600, 1152)  # width and height of the rendered scenes that weights are chosen by
AHEAD = 3  # batches made in advance: new scenes take longer than new views of old ones

MAKING_SAMPLES = Lock()  # held while a batch is made on a GPU; who takes it has the GPU's memory to itself


class BatchSource(Protocol):
    """Makes batches by number."""

    def batch(self, index: int, batch_size: int) -> Batch: ...


class Stream(Protocol):
    """The batches of a run, from a step on, for one process."""

    steps_per_epoch: int  # 0 = there are no epochs

    def batches(self, first_step: int) -> Iterator[Batch]: ...


class SourceStream:
    """Batches of a source that makes them by number, such as the renderer.

    On a GPU a thread makes them in advance, on a CUDA stream of its own. The host works on the next batches
    during a training step, because launching a recorded step waits without holding Python's lock.
    """

    steps_per_epoch = 0

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        processes: Processes,
        device: torch.device | None = None,
        ahead: int | None = None,
    ) -> None:
        self.source = source
        self.batch_size = batch_size
        self.processes = processes
        on_gpu = device is not None and device.type == "cuda"
        self.side = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.ahead = ahead if ahead is not None else AHEAD if on_gpu else 0

    def batches(self, first_step: int) -> Iterator[Batch]:
        numbers = (step * self.processes.count + self.processes.rank for step in count(first_step))
        if self.side is not None:  # the source's textures may still be computed on the current stream
            self.side.wait_stream(torch.cuda.current_stream(self.side.device))
        yield self._receive(*self._make(next(numbers)))  # in this thread: only one thread compiles kernels
        if not self.ahead:
            yield from (self._receive(*self._make(number)) for number in numbers)
        with ThreadPoolExecutor(1) as maker:
            pending = deque(maker.submit(self._make, next(numbers)) for _ in range(self.ahead))
            while True:
                pending.append(maker.submit(self._make, next(numbers)))
                yield self._receive(*pending.popleft().result())

    def _make(self, index: int) -> tuple[Batch, torch.cuda.Event | None]:
        """A batch, and the event that a stream has to wait for before it reads the batch."""
        if self.side is None:
            return self.source.batch(index, self.batch_size), None
        with MAKING_SAMPLES, torch.cuda.stream(self.side):
            batch = self.source.batch(index, self.batch_size)
            return batch, self.side.record_event()

    def _receive(self, batch: Batch, ready: torch.cuda.Event | None) -> Batch:
        if self.side is not None and ready is not None:
            training = torch.cuda.current_stream(self.side.device)
            training.wait_event(ready)
            for tensor in batch.tensors():  # not to be reused before the training step has read them
                tensor.record_stream(training)
        return batch


class DatasetStream:
    """Batches of a data set on disk, read by worker processes, in a new order every epoch."""

    def __init__(
        self, dataset: MVSDataset, batch_size: int, processes: Processes, seed: int = 0, workers: int = 0
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.processes = processes
        self.seed = seed
        self.workers = workers
        samples_per_step = batch_size * processes.count
        self.steps_per_epoch = len(dataset) // samples_per_step
        if not self.steps_per_epoch:
            raise InputError(
                f"the data set has {len(dataset)} samples, a step takes {samples_per_step}: use a smaller "
                "batch size"
            )

    def batches(self, first_step: int) -> Iterator[Batch]:
        epoch, skip = divmod(first_step, self.steps_per_epoch)
        for number in count(epoch):
            self.dataset.set_epoch(number)
            order = self.order(number)[skip:]
            skip = 0
            loader = DataLoader(
                _ErrorsAsSamples(self.dataset),
                batch_sampler=order,
                num_workers=self.workers,
                collate_fn=_batch_or_error,
                pin_memory=torch.cuda.is_available(),
            )
            for found in loader:
                if isinstance(found, GBiNetError):
                    raise found
                yield found

    def order(self, epoch: int) -> list[list[int]]:
        """This process's samples of every step of an epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(self.dataset), generator=generator).tolist()
        size, rank = self.batch_size, self.processes.rank
        samples_per_step = size * self.processes.count
        firsts = [s * samples_per_step + rank * size for s in range(self.steps_per_epoch)]
        return [shuffled[first : first + size] for first in firsts]


class _ErrorsAsSamples(Dataset[Batch | GBiNetError]):
    """Errors travel as samples: DataLoader would raise them with a worker's traceback as their message."""

    def __init__(self, dataset: MVSDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Batch | GBiNetError:
        try:
            return self.dataset[index]
        except GBiNetError as error:
            return error


def _batch_or_error(samples: Sequence[Batch | GBiNetError]) -> Batch | GBiNetError:
    errors = [sample for sample in samples if isinstance(sample, GBiNetError)]
    return errors[0] if errors else collate([s for s in samples if isinstance(s, Batch)])


# ---- the samples that a configuration names ----------------------------------------------------------------


def open_stream(config: TrainConfig, processes: Processes, device: torch.device) -> Stream:
    """Training samples."""
    if config.source == "rendered":
        from gbinet.render.source import RenderConfig, RenderedSource

        render = RenderConfig(
            width=config.width,
            height=config.height,
            views=config.views,
            seed=config.seed,
            assets=config.assets,
            kinds=config.kinds,
            dtu_like=config.dtu_like,
            samples_per_scene=config.samples_per_scene,
            zoom=config.zoom,
            least_zoom=config.least_zoom,
            life=config.life,
        )
        return SourceStream(
            RenderedSource(render, device, processes.count), config.batch_size, processes, device
        )
    dataset = MVSDataset(_scenes(config, "train"), _sample_config(config, training=True))
    workers = min(config.workers, usable_cores())
    return DatasetStream(dataset, config.batch_size, processes, config.seed, workers)


def validation_batches(
    config: TrainConfig, device: torch.device, rendered_size: tuple[int, int] = FULL_SIZE
) -> Sequence[Batch]:
    """The samples that weights are chosen by, one per batch; none if the configuration says so."""
    count = config.validation_scenes
    if not count:
        return []
    if config.source == "rendered":
        return _rendered_validation(config, device, rendered_size)
    dataset = MVSDataset(_scenes(config, "val"), _sample_config(config, training=False))
    chosen = [i * len(dataset) // count for i in range(min(count, len(dataset)))]
    return [_rescaled_like_dtu(dataset[i]) for i in chosen]


def _rendered_validation(config: TrainConfig, device: torch.device, size: tuple[int, int]) -> Sequence[Batch]:
    """The fixed validation set: with assets, of objects that are never trained on; else generated shapes."""
    from gbinet.render.validation import validation_samples

    part = "free" if config.assets is None else "assets"
    samples = validation_samples(part, config.assets, size, device, config.validation_scenes)
    return [sample.batch().to("cpu") for sample in samples]  # the GPU's memory is for training


def _scenes(config: TrainConfig, split: str) -> Sequence[Scene]:
    from gbinet.scenes import blendedmvs, dtu

    if config.data is None:
        raise InputError(f"the data set {config.source} must be on disk: give its folder with --data")
    if config.source == "dtu":
        # One lighting for validation: the others have the same depths.
        return dtu.load_set(config.data, split) if split == "train" else dtu.load_set(config.data, split, [3])
    if config.source == "blendedmvs":
        return blendedmvs.load_set(config.data, split)
    parts = own_folders(config.data, config.validation_scenes > 0)
    return _own_scenes(parts.held_back if split == "val" else parts.trained)


@dataclass(frozen=True)
class OwnFolders:
    """Folders of scenes with true depth, in the order of their names."""

    trained: list[Path]
    held_back: list[Path]


def own_folders(folder: Path, hold_back: bool) -> OwnFolders:
    """The scenes with cameras in a folder; the first of every eight is held back if any is to be."""
    from gbinet.scenes.kinds import recognise

    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    scenes = [path for path in folders if (kind := recognise(path)) is not None and kind.posed]
    if not scenes:
        raise InputError(
            f"--data {folder} contains no scene with cameras and true depth; `gbinet info FOLDER` says what "
            "a folder is read as"
        )
    if not hold_back:
        return OwnFolders(scenes, [])
    if len(scenes) == 1:
        raise InputError(
            f"--data {folder} holds one scene, and the first of every eight is held back for validation: "
            "add a scene, or give --validation-scenes 0"
        )
    return OwnFolders([path for i, path in enumerate(scenes) if i % 8], scenes[::8])


def _own_scenes(folders: list[Path]) -> Sequence[Scene]:
    from gbinet.scenes.load import load_scene

    scenes = [load_scene(path) for path in folders]
    for path, scene in zip(folders, scenes, strict=True):
        if all(view.depth_path is None for view in scene.views):
            raise InputError(f"{path} has no true depth to train on or to validate with: move it elsewhere")
    return scenes


def _sample_config(config: TrainConfig, training: bool) -> SampleConfig:
    size = (config.width, config.height)
    sample = SampleConfig(config.views, random_sources=training, seed=config.seed)
    if config.source in ("blendedmvs", "scenes"):
        strength = 0.2 if training else 0.0
        return replace(sample, resize=size, jitter=ColourJitter(brightness=strength, contrast=strength))
    if config.crops:
        # The published crops are cut from the same window that whole images are trained in.
        return replace(sample, centre_crop=(1280, 1024), random_crop=size if training else None)
    return replace(sample, centre_crop=size)


def _rescaled_like_dtu(batch: Batch) -> Batch:
    """In a unit in which the range is 510 wide, as that of DTU: thresholds then mean the same everywhere."""
    factor = 510 / (batch.depth_range[:, 1] - batch.depth_range[:, 0])  # [B]
    pose = batch.cameras.cam_from_world.clone()
    pose[..., :3, 3] *= factor[:, None, None]
    return replace(
        batch,
        cameras=replace(batch.cameras, cam_from_world=pose),
        depth_range=batch.depth_range * factor[:, None],
        depth=batch.depth * factor[:, None, None],
    )
