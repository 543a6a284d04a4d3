from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ball_scene import SceneMaker, true_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle

from gbinet.camera import Camera
from gbinet.errors import GBiNetError, InputError, SceneError
from gbinet.formats.image import read_image
from gbinet.inference import tiles
from gbinet.inference.feature_cache import FeatureCache
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.scene import DepthRange, Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet.scenes.neighbours import visiting_order


def run(scene: Scene, out: Path, oracle: Oracle | None = None, **config: object):  # type: ignore[no-untyped-def]
    oracle = oracle or Oracle(scene)
    return oracle, estimate_depths(scene, oracle, out, DepthConfig(**config))  # type: ignore[arg-type]


# ---- a scene ----


def test_every_view_gets_its_depth_and_no_image_is_encoded_twice(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene(views=7)
    oracle, result = run(scene, tmp_path / "depth")
    assert sorted(result.computed) == [v.name for v in scene.views]
    assert oracle.encodes == result.encoded == 7 and result.encoded_again == 0
    folder = DepthFolder(scene, tmp_path / "depth")
    for i, view in enumerate(scene.views):
        found = folder.load(i)
        assert found is not None and torch.equal(found.depth, true_depth(view.camera))
        assert found.confidence is not None and found.confidence.allclose(torch.tensor(0.9))


def test_a_small_cache_encodes_again_but_finishes(ball_scene: SceneMaker, tmp_path: Path) -> None:
    _, result = run(ball_scene(views=7), tmp_path / "depth", cache_memory=1e-9)
    assert len(result.computed) == 7 and result.encoded_again > 0


def test_finished_views_are_kept_and_the_rest_is_the_same(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    run(scene, whole := tmp_path / "whole")
    run(scene, broken := tmp_path / "broken")
    (broken / "002.npz").unlink()
    (broken / "004.npz").unlink()
    oracle, result = run(scene, broken)
    assert sorted(result.computed) == ["002", "004"] and len(result.kept) == 3 and oracle.searches == 2
    for path in whole.glob("*.npz"):
        assert path.read_bytes() == (broken / path.name).read_bytes()


def test_maps_of_other_settings_are_refused_and_named(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    run(scene, out := tmp_path / "depth", views=3)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(GBiNetError, match="views 3 there, 4 now"):
        run(scene, out, views=4)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    oracle = Oracle(scene)
    result = estimate_depths(scene, oracle, out, DepthConfig(views=4), overwrite=True)  # type: ignore[arg-type]
    assert len(result.computed) == 5
    assert json.loads((out / "settings.json").read_text())["views"] == 4
    run(scene, out, views=4, cache_memory=1.0, max_memory=9.0)  # these change no depth: nothing to say


def test_the_same_weights_in_another_network_are_other_settings(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene(views=2)
    torch.manual_seed(0)
    one = GBiNet(GBiNetConfig(stages=1))
    other = GBiNet(GBiNetConfig(stages=1, inverse_depth=True))
    other.load_state_dict(one.state_dict())
    config = DepthConfig(max_size=64, views=2)
    estimate_depths(scene, one, tmp_path, config)
    assert len(estimate_depths(scene, one, tmp_path, config).kept) == 2
    with pytest.raises(GBiNetError, match="other configuration of the network"):
        estimate_depths(scene, other, tmp_path, config)


def test_a_broken_photo_loses_its_view_only(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    oracle = Oracle(scene)
    path = scene.views[1].image_path
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, result = run(scene, tmp_path / "depth", oracle)
    assert sorted(result.computed) == ["000", "002", "003", "004"]
    assert list(result.failed) == ["001"] and "cut short" in result.failed["001"]


def test_views_without_neighbours_or_range_are_named(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    views = list(scene.views)
    views[3] = replace(views[3], sources=())
    views[4] = replace(views[4], depth_range=None)
    _, result = run(replace(scene, views=tuple(views)), tmp_path / "depth")
    assert "no other photo" in result.failed["003"] and "depth range" in result.failed["004"]
    assert len(result.computed) == 3
    with pytest.raises(SceneError, match="at least 2 photos"):
        run(replace(scene, views=scene.views[:1]), tmp_path / "one")


def test_photos_that_no_depth_needs_are_neither_read_nor_held(
    ball_scene: SceneMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, read, caches = ball_scene(views=7), list[str](), list[FeatureCache]()

    def cache(*arguments: Any) -> FeatureCache:
        caches.append(FeatureCache(*arguments))
        return caches[-1]

    monkeypatch.setattr("gbinet.inference.predictor.FeatureCache", cache)
    without = tuple(replace(view, depth_range=None) if i else view for i, view in enumerate(scene.views))
    monkeypatch.setattr(
        "gbinet.inference.predictor.read_image", lambda path: (read.append(path.stem), read_image(path))[1]
    )
    _, result = run(replace(scene, views=without), tmp_path, Oracle(scene), views=3)
    assert result.computed == ["000"] and len(result.failed) == 6
    assert sorted(read) == ["000", "001", "002"] and [one.held_bytes for one in caches] == [0]


def test_a_photo_of_another_size_than_its_camera_is_named(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene()
    wrong = replace(scene.views[0], camera=scene.views[0].camera.resized(80, 60))
    _, result = run(replace(scene, views=(wrong, *scene.views[1:])), tmp_path / "depth")
    assert "is 64x48" in result.failed["000"] and "80x60" in result.failed["000"]


def test_photos_are_made_smaller_never_larger(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(width=128, height=96)
    run(scene, tmp_path / "small", max_size=64)
    found = DepthFolder(scene, tmp_path / "small").load(0)
    assert found and found.depth.shape == (48, 64)
    run(scene, tmp_path / "large", max_size=4000)
    found = DepthFolder(scene, tmp_path / "large").load(0)
    assert found and found.depth.shape == (96, 128)


def test_running_out_of_memory_makes_tiles_smaller_or_ends_with_an_error(
    ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene(views=2, width=64, height=48)
    oracle = Oracle(scene, memory_for_pixels=100)  # not even the smallest tile fits
    with pytest.raises(GBiNetError, match="not enough memory"):
        estimate_depths(scene, oracle, tmp_path / "depth")  # type: ignore[arg-type]


def test_missing_permission_and_device_are_named(ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2)
    with pytest.raises(InputError, match="cannot be used here"):
        run(scene, tmp_path / "depth", device="cuda:7")
    with pytest.raises(InputError, match="cannot be used here"):
        run(scene, tmp_path / "depth", device="meta")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    with pytest.raises(GBiNetError, match="a file, not a folder"):
        run(scene, blocked / "depth")
    if os.getuid() != 0:  # root may write everywhere
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        with pytest.raises(GBiNetError, match="no permission"):
            run(scene, closed / "depth")


# ---- the real network in pieces ----


@pytest.fixture(scope="module")
def network() -> GBiNet:
    torch.manual_seed(0)
    model = GBiNet().eval()
    for module in model.modules():  # logits that differ, so that the search has something to choose
        if isinstance(module, torch.nn.Conv3d) and module.out_channels == 1:
            module.weight.data *= 30
    return model


SMOOTH = {"smoothing": ((1, 6), (1, 6), (2, 6), (5, 24))}


@pytest.mark.parametrize(
    "options",
    [{}, {"edge_cells": 2}, SMOOTH | {"readout": "smooth"}, SMOOTH | {"readout": "refined", "refiner": True}],
)
@torch.inference_mode()
def test_tiles_give_the_depth_of_the_whole_image(network: GBiNet, options: dict[str, Any]) -> None:
    weights = network.state_dict()
    network = GBiNet(replace(network.config, **options)).eval()
    network.load_state_dict(weights, strict=False)  # the refiner stays new
    if network.refiner is not None:
        torch.manual_seed(2)
        torch.nn.init.normal_(network.refiner.output.weight, std=0.05)
    torch.manual_seed(1)
    height, width = 140, 330  # no multiples of anything
    coarse = torch.rand(2, 3, height // 8 + 1, width // 8 + 1)
    images = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1)
    K = torch.tensor([[300.0, 0, width / 2], [0, 300, height / 2], [0, 0, 1]], dtype=torch.float64)
    poses = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    poses[:, 0, 3] = torch.tensor([0.0, -0.1])
    cameras = [Camera(K, pose, width, height) for pose in poses]
    whole = [tiles.encode(network, image, None) for image in images]
    pieces = [tiles.encode(network, image, 128) for image in images]
    for one, other in zip(whole[1], pieces[1], strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    bounds = torch.tensor([1.0, 9.0])
    depth, confidence = tiles.search(network, whole, cameras, bounds, None)
    tiled_depth, tiled_confidence = tiles.search(network, whole, cameras, bounds, 128)
    assert depth.shape == (height, width) and depth.unique().numel() > 10
    # Centres of bins are equal or not; the refiner reads confidence, in the padding too.
    close = {"centre": 0.0, "smooth": 1e-5, "refined": 1e-4}[network.config.readout]
    assert torch.isclose(depth, tiled_depth, rtol=close, atol=0).float().mean() > 0.995
    assert (confidence - tiled_confidence).abs().mean() < 1e-3
    # and it is what the network's own method gives
    stacked = Camera.stack(cameras)
    predicted = network.predict(images, stacked, DepthRange(1.0, 9.0))
    assert torch.isclose(predicted.depth, depth, rtol=min(close, 1e-5), atol=0).float().mean() > 0.999


@torch.inference_mode()
def test_a_search_that_ends_before_the_cut_is_not_cut(network: GBiNet) -> None:
    """All stages at 1/8 and 1/4 of the size, with the read-out that looks at the last stage."""
    model = GBiNet(replace(network.config, readout="expectation")).eval()
    model.load_state_dict(network.state_dict())
    K = torch.tensor([[200.0, 0, 100], [0, 200.0, 80], [0, 0, 1]])
    cameras = [Camera(K, torch.eye(4), 200, 160)] * 2
    features = [tiles.encode(model, image, None) for image in torch.rand(2, 3, 160, 200)]
    bounds = torch.tensor([1.0, 9.0])
    for stages in (1, 4):
        whole, _ = tiles.search(model, features, cameras, bounds, None, stages)
        cut, _ = tiles.search(model, features, cameras, bounds, 128, stages)
        assert torch.equal(whole, cut)


def test_no_stages_at_all_are_refused() -> None:
    with pytest.raises(InputError, match="stages must be at least 1, got 0"):
        DepthConfig(stages=0)


@torch.inference_mode()
def test_max_memory_cuts_images_and_warns(network: GBiNet, ball_scene: SceneMaker, tmp_path: Path) -> None:
    scene = ball_scene(views=2, width=320, height=200)
    result = estimate_depths(
        scene, network, tmp_path / "depth", DepthConfig(views=2, stages=2, max_memory=0.02)
    )
    assert result.tile == 128 and any("tiles of 128 px" in w for w in result.warnings)
    assert len(result.computed) == 2


def test_views_may_have_photos_of_different_sizes(
    network: GBiNet, ball_scene: SceneMaker, tmp_path: Path
) -> None:
    scene = ball_scene(views=3)
    from PIL import Image

    small = tmp_path / "small.png"
    Image.open(scene.views[1].image_path).resize((40, 30)).save(small)
    other = replace(scene.views[1], image_path=small, camera=scene.views[1].camera.resized(40, 30))
    mixed = replace(scene, views=(scene.views[0], other, scene.views[2]))
    result = estimate_depths(mixed, network, tmp_path / "depth", DepthConfig(views=3))
    assert len(result.computed) == 3 and not result.failed
    found = DepthFolder(mixed, tmp_path / "depth").load(1)
    assert found and found.depth.shape == (30, 40) and bool(found.valid.all())


# ---- parts ----


@given(st.integers(1, 2000), st.integers(1, 8), st.integers(0, 3))
@settings(deadline=None)
def test_tiles_partition_the_axis_and_overlap(length: int, tile: int, overlap: int) -> None:
    pieces = tiles.spans(length, 64 * tile, 64 * overlap)
    assert pieces[0].keep_start == 0 and pieces[-1].keep_stop == length
    assert all(a.keep_stop == b.keep_start for a, b in itertools.pairwise(pieces))
    for piece in pieces:
        assert piece.start % 64 == 0 and 0 <= piece.start <= piece.keep_start < piece.keep_stop <= piece.stop
        assert piece.start == max(0, piece.keep_start - 64 * overlap)
        assert piece.stop == min(length, piece.keep_stop + 64 * overlap)


@given(st.lists(st.integers(0, 9), max_size=80), st.integers(1, 10))
@settings(deadline=None)
def test_the_cache_keeps_the_most_recent_views(requests: list[int], room: int) -> None:
    cpu = torch.device("cpu")
    cache = FeatureCache(lambda v: (torch.full((4,), float(v)),), room * 16, cpu, cpu)
    recent: list[int] = []
    for view in requests:
        hit = view in recent
        assert (view in cache) == hit
        before = cache.encoded[view]
        assert cache.get(view)[0].tolist() == [view] * 4
        assert cache.encoded[view] == before + (not hit)
        recent = [*[r for r in recent if r != view], view][-room:]
        assert cache.held_bytes <= room * 16


@given(st.integers(1, 12), st.data())
@settings(deadline=None)
def test_the_visiting_order_has_every_view_once(count: int, data: st.DataObject) -> None:
    neighbours = [data.draw(st.lists(st.integers(0, count - 1), max_size=4)) for _ in range(count)]
    order = visiting_order(neighbours)
    assert sorted(order) == list(range(count))
    for before, after in itertools.pairwise(order):
        left = [n for n in neighbours[before] if n not in order[: order.index(before) + 1]]
        assert not left or after == left[0]  # the best unvisited neighbour is next


def error_of_numpy() -> MemoryError:
    try:
        np.empty(1 << 50)
    except MemoryError as error:
        return error
    raise AssertionError("this machine has a petabyte to give")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("pretended"),
        MemoryError(),
        error_of_numpy(),
        OSError(12, "Cannot allocate memory"),
        *(
            RuntimeError(text)
            for text in (
                "could not create a primitive",  # oneDNN
                "could not create a primitive descriptor for a convolution forward propagation primitive",
                "could not create a memory object",
                "std::bad_alloc",
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 28311552 bytes. Error code 12 (Cannot allocate memory)",
                "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried",
                "MPS backend out of memory (MPS allocated: 9 GB)",
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            )
        ),
    ],
    ids=lambda error: str(error)[:40] or type(error).__name__,
)
def test_out_of_memory_halves_the_tile_and_goes_on(
    error: Exception,
    network: GBiNet,
    ball_scene: SceneMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = ball_scene(views=2, width=320, height=200)
    real = tiles.search

    def small_memory(*arguments, **options):  # type: ignore[no-untyped-def]
        if arguments[4] is None or arguments[4] > 128:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(tiles, "search", small_memory)
    result = estimate_depths(scene, network, tmp_path / "depth", DepthConfig(views=2, stages=2))
    assert result.tile == 128 and len(result.computed) == 2
    assert [w for w in result.warnings if "ran out of memory" in w]


def test_sources_that_see_nothing_are_not_read() -> None:
    from gbinet.scene import SourceView, View

    camera = Camera(torch.eye(3), torch.eye(4), 8, 8)
    scores = [(3, 8.0), (1, 0.5), (2, 0.001), (4, 0.0)]
    view = View("a", camera, Path("a.png"), sources=tuple(SourceView(i, s) for i, s in scores))
    assert view.best_sources() == [3, 1] and view.best_sources(1) == [3]
    unscored = replace(view, sources=tuple(SourceView(i, 0.0) for i in (2, 1)))
    assert unscored.best_sources() == [2, 1]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "5", "\xff"])
def test_settings_that_cannot_be_read_lose_nothing(
    text: str, network: GBiNet, ball_scene: SceneMaker, tmp_path: Path
) -> None:
    """Every map says itself what it was made from."""
    scene, config = ball_scene(views=2), DepthConfig(views=2, stages=1)
    assert len(estimate_depths(scene, network, tmp_path, config).computed) == 2
    (tmp_path / "settings.json").write_bytes(text.encode("latin-1"))
    assert len(estimate_depths(scene, network, tmp_path, config).computed) == 0
