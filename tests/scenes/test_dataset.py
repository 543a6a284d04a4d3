"""Training samples: what is in them, and that they repeat."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gbinet.camera import Camera
from gbinet.errors import FormatError, InputError, SceneError
from gbinet.formats.depth_files import write_depth
from gbinet.formats.image import write_image
from gbinet.scene import DepthRange, Scene, SourceView, View
from gbinet.scenes.batch import Batch, collate
from gbinet.scenes.dataset import MVSDataset, SampleConfig, read_frame
from gbinet.scenes.transforms import ColourJitter

NUM_VIEWS = 12


def make_scene(folder: Path, name: str = "room", width: int = 80, height: int = 64) -> Scene:
    """Views in a row before a wall at z = 4; the red of view v is 20 v everywhere, so that it can be told."""
    K = torch.tensor([[70.0, 0, width / 2], [0, 70, height / 2], [0, 0, 1]], dtype=torch.float64)
    views = []
    for v in range(NUM_VIEWS):
        pose = torch.eye(4, dtype=torch.float64)
        pose[0, 3] = -0.1 * v
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[..., 0] = 20 * v
        pixels[..., 1] = np.arange(width)  # the column
        pixels[..., 2] = np.arange(height)[:, None]  # the row
        depth = np.full((height, width), 4.0, np.float32)
        depth[:5] = 0
        mask = np.ones((height, width), bool)
        mask[:, :7] = False
        order = sorted((u for u in range(NUM_VIEWS) if u != v), key=lambda u: abs(u - v))
        views.append(
            View(
                name=f"{v:03d}",
                camera=Camera(K, pose, width, height),
                image_path=write_image(folder / name / f"{v:03d}.png", pixels),
                depth_range=DepthRange(2.0, 8.0),
                sources=tuple(SourceView(u, 1.0 / abs(u - v)) for u in order),
                mask_path=write_image(folder / name / f"{v:03d}_mask.png", mask),
                depth_path=write_depth(folder / name / f"{v:03d}.npz", depth),
            )
        )
    return Scene(name, "test", folder, tuple(views))


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("scene"))


def view_numbers(images: torch.Tensor) -> list[int]:
    return [round(float(v[0].mean()) * 255 / 20) for v in images]


def test_a_sample_holds_reference_best_sources_depth_and_mask(scene):
    dataset = MVSDataset([scene], SampleConfig(num_views=4))
    assert len(dataset) == NUM_VIEWS
    sample = dataset[5]
    assert sample.images.shape == (1, 4, 3, 64, 80) and sample.images.dtype == torch.float32
    assert view_numbers(sample.images[0]) == [5, 4, 6, 3]
    assert sample.names == ("room/005",)
    assert sample.depth_range.tolist() == [[2.0, 8.0]]
    assert sample.cameras.batch_shape == (1, 4) and sample.cameras.K.dtype == torch.float32
    assert [round(-10 * x) for x in sample.cameras.cam_from_world[0, :, 0, 3].tolist()] == [5, 4, 6, 3]
    assert not sample.depth[0, :5].any() and (sample.depth[0, 5:] == 4).all()
    expected = torch.ones(64, 80, dtype=torch.bool)
    expected[:5] = False
    expected[:, :7] = False
    assert torch.equal(sample.mask[0], expected)


def test_random_sources_come_from_the_best_ten_and_change_with_the_epoch(scene):
    dataset = MVSDataset([scene], SampleConfig(num_views=4, random_sources=True))
    drawn = []
    for epoch in range(40):
        dataset.set_epoch(epoch)
        numbers = view_numbers(dataset[0].images[0])
        assert numbers[0] == 0 and len(set(numbers)) == 4
        drawn.append(tuple(numbers))
        assert numbers == view_numbers(dataset[0].images[0])
    assert len(set(drawn)) > 20
    assert {n for numbers in drawn for n in numbers[1:]} == set(range(1, 11))  # all of the best, never 11


def test_random_crop_moves_cameras_with_the_pixels(scene):
    dataset = MVSDataset([scene], SampleConfig(num_views=3, random_crop=(40, 32)))
    corners = set()
    for index in range(NUM_VIEWS):
        sample = dataset[index]
        assert sample.images.shape == (1, 3, 3, 32, 40) and sample.depth.shape == (1, 32, 40)
        left, top = (sample.images[0, :, c, 0, 0] * 255 for c in (1, 2))
        assert torch.allclose(left, left[0].expand(3)) and torch.allclose(top, top[0].expand(3))
        assert torch.allclose(sample.cameras.K[0, :, 0, 2], 40 - left)
        assert torch.allclose(sample.cameras.K[0, :, 1, 2], 32 - top)
        corners.add((int(left[0]), int(top[0])))
    assert len(corners) > 6


def test_a_wall_is_where_the_cameras_say(scene):
    """Points of the reference's depth land in a source on the pixel column that the geometry demands."""
    config = SampleConfig(num_views=2, resize=(64, 64), random_crop=(48, 40))
    sample = MVSDataset([scene], config)[3]
    reference, source = sample.cameras[0, 0], sample.cameras[0, 1]
    row, column = 20, 20
    depth = sample.depth[0, row, column]
    point = reference.unproject(reference.pixel_grid()[row, column][None], depth[None])
    pixel, _ = source.project(point)
    # The disparity is f * baseline / depth = 70 * 0.1 / 4 pixels; covering 64x64 keeps the scale.
    shift = (pixel - reference.pixel_grid()[row, column])[0]
    assert abs(abs(float(shift[0])) - 1.75) < 1e-4 and abs(float(shift[1])) < 1e-4


def test_a_batch_lies_where_its_samples_lie() -> None:
    camera = Camera(torch.eye(3, device="meta")[None, None], torch.eye(4, device="meta")[None, None], 8, 8)
    maps = torch.zeros(1, 8, 8, device="meta")
    sample = Batch(maps[:, None, None].expand(1, 1, 3, 8, 8), camera, maps[:, 0, :2], maps, maps > 0, ("a",))
    assert {tensor.device.type for tensor in collate([sample, sample]).tensors()} == {"meta"}


def test_views_of_other_sizes_are_brought_to_the_reference(tmp_path):
    wide = make_scene(tmp_path, "wide", 100, 64)
    narrow = make_scene(tmp_path, "narrow", 80, 70)
    views = tuple(w if i % 2 else n for i, (w, n) in enumerate(zip(wide.views, narrow.views, strict=True)))
    mixed = replace(wide, views=views)
    assert MVSDataset([mixed], SampleConfig(num_views=4))[4].images.shape == (1, 4, 3, 70, 80)
    sized = MVSDataset([mixed], SampleConfig(num_views=4, resize=(64, 48)))
    batch = collate([sized[i] for i in range(4)])
    assert batch.images.shape == (4, 4, 3, 48, 64) and len(batch) == 4
    assert batch.cameras.batch_shape == (4, 4) and len(batch.names) == 4
    with pytest.raises(InputError, match="one shape"):
        unsized = MVSDataset([mixed], SampleConfig(num_views=4))
        collate([unsized[0], unsized[1]])


def same(a, b) -> bool:
    return a.names == b.names and all(
        torch.equal(x, y)
        for x, y in [(a.images, b.images), (a.depth, b.depth), (a.cameras.K, b.cameras.K), (a.mask, b.mask)]
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_what_one_process_gives_in_every_epoch(scene, workers):
    config = SampleConfig(
        num_views=3, random_sources=True, random_crop=(32, 32), jitter=ColourJitter(0.3, 0.3, 0.3), seed=7
    )
    alone, shared = MVSDataset([scene], config), MVSDataset([scene], config)
    loader = DataLoader(
        shared, batch_size=5, num_workers=workers, collate_fn=collate, persistent_workers=True
    )
    epochs = []
    for epoch in range(2):
        alone.set_epoch(epoch)
        shared.set_epoch(epoch)  # persistent workers must see it
        batches = list(loader)
        for number, batch in enumerate(batches):
            indices = range(5 * number, min(5 * number + 5, NUM_VIEWS))
            assert same(batch, collate([alone[i] for i in indices]))
        epochs.append(batches)
    assert not same(epochs[0][0], epochs[1][0])


def test_it_can_be_pickled_and_moved(scene):
    dataset = pickle.loads(pickle.dumps(MVSDataset([scene])))
    batch = dataset[0].to("cpu")
    assert same(batch, dataset[0])
    assert batch.to("meta").images.device.type == batch.to("meta").cameras.K.device.type == "meta"


def test_a_broken_source_is_replaced_and_a_broken_reference_skipped(scene, tmp_path, caplog):
    (tmp_path / "bad.png").write_bytes(b"\x89PNG broken")
    views = list(scene.views)
    views[4] = replace(views[4], image_path=tmp_path / "bad.png")
    dataset = MVSDataset([replace(scene, views=tuple(views))], SampleConfig(num_views=4))
    assert view_numbers(dataset[5].images[0]) == [5, 6, 3, 7]  # without 4
    assert dataset[4].names == ("room/005",)
    assert "bad.png" in caplog.text
    everything = tuple(replace(v, image_path=tmp_path / "bad.png") for v in scene.views)
    with pytest.raises(SceneError, match=r"bad\.png"):
        MVSDataset([replace(scene, views=everything)])[0]


def test_few_sources_repeat_and_scenes_without_samples_are_refused(scene):
    few = tuple(replace(v, sources=v.sources[:2]) for v in scene.views)
    sample = MVSDataset([replace(scene, views=few)], SampleConfig(num_views=5))[5]
    assert view_numbers(sample.images[0]) == [5, 4, 6, 4, 6]
    bare = tuple(replace(v, depth_path=None) for v in scene.views)
    with pytest.raises(SceneError, match="true depth"):
        MVSDataset([replace(scene, views=bare)])
    dataset = MVSDataset([replace(scene, views=bare)], SampleConfig(need_depth=False))
    assert not dataset[0].depth.any() and not dataset[0].mask.any()
    with pytest.raises(IndexError):
        dataset[NUM_VIEWS]
    with pytest.raises(InputError):
        SampleConfig(num_views=1)


def test_depth_of_another_scale_is_taken_nearest_and_of_another_shape_refused(scene, tmp_path):
    small = np.zeros((32, 40), np.float32)
    small[10, 20] = 3
    view = replace(scene.views[0], depth_path=write_depth(tmp_path / "a.pfm", small))
    frame = read_frame(view)
    assert (
        frame.depth.shape == (64, 80) and (frame.depth[20:22, 40:42] == 3).all() and frame.depth.sum() == 12
    )
    with pytest.raises(FormatError, match="another shape"):
        read_frame(replace(view, depth_path=write_depth(tmp_path / "b.pfm", np.ones((64, 64), np.float32))))
    with pytest.raises(FormatError, match="camera is for"):
        read_frame(replace(view, camera=view.camera.resized(40, 32)))
