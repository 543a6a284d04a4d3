"""Streams of samples can start anywhere, share the work, and come from data sets on disk."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from plane_scenes import PlaneSource
from torch.utils.data import Dataset

from gbinet.errors import FormatError, InputError
from gbinet.formats.image import write_image
from gbinet.formats.pfm import write_pfm
from gbinet.scenes import dtu
from gbinet.scenes.batch import Batch
from gbinet.training.config import TrainConfig, preset
from gbinet.training.distributed import Processes
from gbinet.training.samples import DatasetStream, SourceStream, open_stream, validation_batches
from gbinet.training.trainer import train


class CountingDataset(Dataset[Batch]):
    """Ten planes; names tell which sample and epoch a batch holds."""

    epoch = 0

    def __len__(self) -> int:
        return 10

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Batch:
        batch = PlaneSource(8, 8, 2).sample(index)
        return Batch(
            *[getattr(batch, f) for f in ("images", "cameras", "depth_range", "depth", "mask")],
            (f"{self.epoch}/{index}",),
        )


def names(stream: DatasetStream | SourceStream, first: int, count: int) -> list[tuple[str, ...]]:
    return [batch.names for batch in islice(stream.batches(first), count)]


def test_an_epoch_shows_every_sample_once_in_a_new_order():
    stream = DatasetStream(CountingDataset(), 5, Processes())  # type: ignore[arg-type]
    assert stream.steps_per_epoch == 2
    first, second = names(stream, 0, 2), names(stream, 2, 2)
    for epoch, batches in enumerate((first, second)):
        assert {n for b in batches for n in b} == {f"{epoch}/{i}" for i in range(10)}
    assert [n.split("/")[1] for b in first for n in b] != [n.split("/")[1] for b in second for n in b]


def test_batches_made_ahead_are_the_same():
    alone = SourceStream(PlaneSource(8, 8, 2), 2, Processes())
    ahead = SourceStream(PlaneSource(8, 8, 2), 2, Processes(), ahead=2)
    assert names(ahead, 3, 6) == names(alone, 3, 6)


def test_an_error_while_making_ahead_is_raised_and_the_thread_ends():
    class Breaking(PlaneSource):
        def batch(self, index: int, batch_size: int) -> Batch:
            if index == 3:
                raise InputError("sample 3 is broken")
            return super().batch(index, batch_size)

    threads = threading.active_count()
    stream = SourceStream(Breaking(8, 8, 2), 2, Processes(), ahead=2).batches(0)
    assert len(list(islice(stream, 3))) == 3
    with pytest.raises(InputError, match="sample 3"):
        next(stream)
    assert threading.active_count() == threads


@pytest.mark.parametrize("start", [1, 4, 5])
def test_a_stream_can_start_at_any_step(start: int):
    stream = DatasetStream(CountingDataset(), 3, Processes(), seed=3)  # type: ignore[arg-type]
    assert names(stream, start, 3) == names(stream, 0, start + 3)[start:]


def test_processes_share_a_batch():
    whole = DatasetStream(CountingDataset(), 4, Processes())  # type: ignore[arg-type]
    parts = [DatasetStream(CountingDataset(), 2, Processes(r, 2)) for r in range(2)]  # type: ignore[arg-type]
    for step in range(2):
        together = [names(part, step, 1)[0] for part in parts]
        assert together[0] + together[1] == names(whole, step, 1)[0]
    rendered = [SourceStream(PlaneSource(8, 8, 2), 2, Processes(r, 2)) for r in range(2)]
    both = [names(r, 3, 1)[0] for r in rendered]
    assert both[0] + both[1] == names(SourceStream(PlaneSource(8, 8, 2), 4, Processes()), 3, 1)[0]


def test_too_few_samples_are_refused():
    with pytest.raises(InputError, match="10 samples, a step takes 12"):
        DatasetStream(CountingDataset(), 6, Processes(0, 2))  # type: ignore[arg-type]


class BrokenDataset(CountingDataset):
    def __getitem__(self, index: int) -> Batch:
        raise FormatError("a.png", "is broken", "byte 7")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_is_the_same_from_a_worker_process(workers: int):
    stream = DatasetStream(BrokenDataset(), 2, Processes(), workers=workers)  # type: ignore[arg-type]
    with pytest.raises(FormatError) as found:
        names(stream, 0, 1)
    assert str(found.value) == "a.png, byte 7: is broken"


def write_cameras(folder: Path, sample: Batch) -> None:
    """Of three views, in MVSNet's format, with pairs beside them."""
    folder.mkdir(parents=True)
    for view in range(3):
        K, pose = sample.cameras.K[0, view].tolist(), sample.cameras.cam_from_world[0, view].tolist()
        rows, inner = ("\n".join(" ".join(map(str, row)) for row in matrix) for matrix in (pose, K))
        camera = f"extrinsic\n{rows}\n\nintrinsic\n{inner}\n\n425 2.5\n"
        (folder / f"{view:08d}_cam.txt").write_text(camera)
    pairs = "".join(f"{v}\n2 {(v + 1) % 3} 9.0 {(v + 2) % 3} 8.0\n" for v in range(3))
    (folder / "pair.txt").write_text(f"3\n{pairs}")


def pixels_of(sample: Batch, view: int) -> npt.NDArray[np.uint8]:
    return (sample.images[0, view].permute(1, 2, 0).numpy() * 255).astype(np.uint8)


@pytest.fixture
def small_dtu(tmp_path: Path) -> Path:
    """A training set in DTU's layout: every scan is a link to the same three photos of a plane."""
    sample = PlaneSource(96, 128, 3).sample(5)
    root = tmp_path / "dtu"
    photos, depths = root / "photos", root / "depths"
    for view in range(3):
        for light in range(dtu.LIGHTS):
            write_image(photos / f"rect_{view + 1:03d}_{light}_r5000.png", pixels_of(sample, view))
        write_pfm(depths / f"depth_map_{view:04d}.pfm", sample.depth[0].numpy())
        write_image(depths / f"depth_visual_{view:04d}.png", np.full((96, 128), 255, np.uint8))
    write_cameras(root / "Cameras", sample)
    for folder, target in (("Rectified_raw", photos), ("Depths_raw", depths)):
        (root / folder).mkdir()
        for scan in dtu.TRAIN + dtu.VALIDATION:
            (root / folder / f"scan{scan}").symlink_to(target)
    return root


def write_own_scenes(folder: Path, count: int) -> Path:
    """Scenes as a user has them, each a plane, with depth of all views; and a folder that is none."""
    for number in range(count):
        sample, scene = PlaneSource(96, 128, 3).sample(number), folder / f"scene{number}"
        write_cameras(scene / "cams", sample)
        (scene / "cams" / "pair.txt").rename(scene / "pair.txt")
        for view in range(3):
            write_image(scene / "images" / f"{view:08d}.png", pixels_of(sample, view))
            write_pfm(scene / "depths" / f"{view:08d}.pfm", sample.depth[0].numpy())
    (folder / "notes").mkdir(parents=True)
    return folder


def test_own_scenes_are_trained_on_and_every_eighth_is_held_back(tmp_path: Path) -> None:
    data = write_own_scenes(tmp_path / "scenes", 9)
    config = preset(
        "scenes", data=data, height=64, width=64, views=3, batch_size=1, workers=0, validation_scenes=4
    )
    stream = open_stream(config, Processes(), torch.device("cpu"))
    trained = {name.split("/")[0] for batch in names(stream, 0, 7 * 3) for name in batch}  # type: ignore[arg-type]
    held_back = {b.names[0].split("/")[0] for b in validation_batches(config, torch.device("cpu"))}
    assert trained == {f"scene{i}" for i in range(1, 8)}
    assert held_back == {"scene0", "scene8"}
    batch = next(stream.batches(0))
    assert batch.images.shape == (1, 3, 3, 64, 64)
    assert bool((batch.depth > 0).any())


def test_one_scene_alone_cannot_also_be_held_back(tmp_path: Path) -> None:
    data = write_own_scenes(tmp_path / "scenes", 1)
    config = preset("scenes", data=data, height=64, width=64, views=3, batch_size=1, workers=0)
    with pytest.raises(InputError, match="--validation-scenes 0"):
        open_stream(config, Processes(), torch.device("cpu"))
    alone = replace(config, validation_scenes=0)
    assert open_stream(alone, Processes(), torch.device("cpu")).steps_per_epoch == 3
    with pytest.raises(InputError, match="gbinet info"):
        open_stream(replace(config, data=tmp_path / "scenes" / "notes"), Processes(), torch.device("cpu"))
    shutil.rmtree(data / "scene0" / "depths")
    with pytest.raises(InputError, match="scene0 has no true depth"):
        open_stream(alone, Processes(), torch.device("cpu"))


def test_the_dtu_preset_trains(small_dtu: Path, tmp_path: Path):
    config = preset("dtu", data=small_dtu, height=64, width=64, views=3, batch_size=2, workers=0, log_every=1)
    stream = open_stream(config, Processes(), torch.device("cpu"))
    assert stream.steps_per_epoch == 79 * 3 * 7 // 2
    batch = next(stream.batches(0))
    assert batch.images.shape == (2, 3, 3, 64, 64)
    assert batch.depth_range[0].tolist() == [425.0, 935.0]
    assert bool(batch.mask.all())
    one_step = TrainConfig.from_dict(
        {**config.to_dict(), "total_steps": 1, "tensorboard": False, "validation_scenes": 1}
    )
    result = train(one_step, tmp_path / "run")
    assert result.progress.step == 1
    assert result.validation is not None
    assert set(result.validation.centres) == set(range(1, 9))


def test_validation_samples_are_in_units_like_dtu(small_dtu: Path):
    config = preset("dtu", data=small_dtu, height=64, width=64, views=3, validation_scenes=2)
    batches = validation_batches(config, torch.device("cpu"))
    assert len(batches) == 2
    for batch in batches:
        near, far = batch.depth_range[0].tolist()
        assert far - near == pytest.approx(510)


def test_a_data_set_needs_its_folder():
    with pytest.raises(InputError, match="--data"):
        open_stream(preset("dtu"), Processes(), torch.device("cpu"))
