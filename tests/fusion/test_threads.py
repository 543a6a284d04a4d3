"""The number of threads changes no digit of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from ball_scene import SceneMaker

from gbinet.fusion.photometric import texture
from gbinet.inference.predictor import DepthConfig
from gbinet.model.gbinet import GBiNet
from gbinet.model.layers import Conv2d
from gbinet.ops.softmax import reproducible_softmax
from gbinet.pipeline.reconstruct import ReconstructConfig, run

T = TypeVar("T")


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


def with_threads(count: int, compute: Callable[[], T]) -> T:
    torch.set_num_threads(count)
    return compute()


@pytest.mark.parametrize("size", [(31, 40), (61, 79), (241, 317)])
def test_softmax_over_bins(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    logits = 5 * torch.randn(1, 16, *size)
    with torch.inference_mode():
        one, two, three = (with_threads(n, lambda: reproducible_softmax(logits)) for n in (1, 2, 3))
        assert torch.equal(one, two) and torch.equal(one, three)
        assert torch.allclose(one, logits.softmax(1), atol=1e-6)
    assert torch.equal(reproducible_softmax(logits), logits.softmax(1))  # while training


@pytest.mark.parametrize("size", [(33, 47), (68, 96)])
def test_convolution_of_one_pixel_to_few_channels(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer, maps = Conv2d(64, 3, 1), torch.randn(1, 64, *size)
    with torch.inference_mode():
        one, two, three = (with_threads(n, lambda: layer(maps)) for n in (1, 2, 3))
        assert torch.equal(one, two) and torch.equal(one, three)
        assert torch.allclose(one, torch.nn.functional.conv2d(maps, layer.weight, layer.bias), atol=1e-5)


def test_texture_is_exact() -> None:
    torch.manual_seed(0)
    photo = torch.randint(0, 256, (193, 257, 3), dtype=torch.uint8)
    photo[:, :100] = photo[:, :100] // 64 + 100  # nearly blank
    one, two = (with_threads(n, lambda: texture(photo)) for n in (1, 2))
    assert torch.equal(one, two)
    grey = photo.double().mean(-1)
    for row, column in ((0, 0), (5, 9), (100, 200), (192, 256), (0, 128)):
        window = grey[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
        assert abs(float(one[row, column]) - float(window.std(correction=0))) < 1e-4
    assert float(texture(torch.full((20, 20, 3), 200, dtype=torch.uint8)).max()) == 0


@pytest.mark.slow
def test_depth_maps_and_clouds(ball_scene: SceneMaker, tmp_path: Path) -> None:
    model = GBiNet.from_pretrained()
    scene = ball_scene(views=2, width=187, height=131)
    config = ReconstructConfig(depth=DepthConfig(views=2))
    fusion = replace(
        config.fusion, min_views=1, max_reprojection=50.0, max_relative_depth=0.9, min_confidence=0.2
    )
    config = replace(config, fusion=fusion)
    results = [with_threads(n, lambda n=n: run(scene, model, tmp_path / str(n), config)) for n in (1, 2)]  # type: ignore[misc]
    assert results[0].points > 0
    for name in ("cloud.ply", *(f"depth/{view.name}.npz" for view in scene.views)):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name
