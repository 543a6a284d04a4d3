"""Where training samples come from: an endless stream of batches that can start at any step.

The batch of a step is a function of the seed, the step and the process only, so a resumed run sees what the
unbroken one would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Protocol

import torch
from torch.utils.data import DataLoader

from gbinet.data.batch import Batch, collate
from gbinet.data.dataset import MVSDataset
from gbinet.errors import InputError
from gbinet.training.config import TrainConfig
from gbinet.training.distributed import Processes


class BatchSource(Protocol):
    """Makes batches by number."""

    def batch(self, index: int, batch_size: int) -> Batch: ...


class Stream(Protocol):
    """The batches of a run, from a step on, for one process."""

    steps_per_epoch: int  # 0 = there are no epochs

    def batches(self, first_step: int) -> Iterator[Batch]: ...


class SourceStream:
    """Batches of a source that makes them by number, such as the renderer."""

    steps_per_epoch = 0

    def __init__(self, source: BatchSource, batch_size: int, processes: Processes) -> None:
        self.source = source
        self.batch_size = batch_size
        self.processes = processes

    def batches(self, first_step: int) -> Iterator[Batch]:
        for step in count(first_step):
            yield self.source.batch(step * self.processes.count + self.processes.rank, self.batch_size)


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
        together = batch_size * processes.count
        self.steps_per_epoch = len(dataset) // together
        if not self.steps_per_epoch:
            raise InputError(
                f"the data set has {len(dataset)} samples, a step takes {together}: use a smaller batch size"
            )

    def batches(self, first_step: int) -> Iterator[Batch]:
        epoch, skip = divmod(first_step, self.steps_per_epoch)
        for number in count(epoch):
            self.dataset.set_epoch(number)
            order = self.order(number)[skip:]
            skip = 0
            yield from DataLoader(
                self.dataset,
                batch_sampler=order,
                num_workers=self.workers,
                collate_fn=collate,
                pin_memory=torch.cuda.is_available(),
            )

    def order(self, epoch: int) -> list[list[int]]:
        """This process's samples of every step of an epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(self.dataset), generator=generator).tolist()
        size, together = self.batch_size, self.batch_size * self.processes.count
        firsts = [s * together + self.processes.rank * size for s in range(self.steps_per_epoch)]
        return [shuffled[first : first + size] for first in firsts]


def open_stream(config: TrainConfig, processes: Processes, device: torch.device) -> Stream:
    """The samples that a configuration names."""
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
        )
        return SourceStream(RenderedSource(render, device), config.batch_size, processes)
    raise InputError("not there")


def validation_batches(config: TrainConfig, device: torch.device) -> Sequence[Batch]:
    """The samples that weights are chosen by; none if the configuration says so."""
    if not config.validation_scenes:
        return []
    from gbinet.render.assets import AssetLibrary
    from gbinet.render.source import RenderConfig, RenderedSource

    render = RenderConfig(
        width=1600, height=1152, views=5, seed=991, dtu_like=True, samples_per_scene=1, asset_share=1.0
    )
    source = RenderedSource(render, device)
    if config.assets is not None:
        source.library = AssetLibrary.open(config.assets, device, held_out=True)
    samples = []
    for index in range(config.validation_scenes):
        batch = source.batch(index, 1)
        samples.append(replace(batch, depth_range=batch.depth_range.new_tensor([[425.0, 935.0]])).to("cpu"))
    return samples
