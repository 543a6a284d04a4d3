"""The whole network: any size, any number of views, batches, types, presets; and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gbinet.camera import Camera
from gbinet.errors import GBiNetError, InputError
from gbinet.model import search
from gbinet.model.config import PRESETS, GBiNetConfig
from gbinet.model.gbinet import GBiNet, SearchResult
from gbinet.model.regulariser import Regulariser
from gbinet.scene import DepthRange

SMALL = GBiNetConfig(encoder_width=4, regulariser_width=2)  # the same network with thin layers


def network(config: GBiNetConfig = SMALL) -> GBiNet:
    torch.manual_seed(0)
    model = GBiNet(config).eval()
    for name, parameter in model.named_parameters():  # a fresh network has no opinions: give it some
        if parameter.dim() > 1:
            gain = 0.3 if "offset" in name else 1.5
            torch.nn.init.normal_(parameter, std=gain / parameter[0].numel() ** 0.5)
    return model


@pytest.fixture(scope="module")
def model() -> GBiNet:
    return network()


def run(model: GBiNet, scene: Any, **options: Any) -> SearchResult:
    with torch.inference_mode():
        ends = torch.tensor([[scene.depth_range.near, scene.depth_range.far]])
        result: SearchResult = model(scene.images[None], scene.cameras[None], ends, **options)
    return result


def assert_sensible(result: Any, scene: Any) -> None:
    height, width = scene.images.shape[-2:]
    depth, confidence = result.depth.reshape(height, width), result.confidence.reshape(height, width)
    assert depth.dtype == confidence.dtype == torch.float32
    assert ((depth >= scene.depth_range.near) & (depth <= scene.depth_range.far)).all()
    assert ((confidence > 0) & (confidence <= 1.0001)).all()


def test_parameters_of_the_paper() -> None:
    assert sum(p.numel() for p in GBiNet("gbinet").parameters()) == 1_429_524


# ---- it runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(333, 517), (8, 8), (9, 70), (64, 64), (1, 1), (33, 17)])
def test_any_size(model: GBiNet, make_tiny_scene: Any, height: int, width: int) -> None:
    scene = make_tiny_scene(2, height, width)
    assert_sensible(model.predict(scene.images, scene.cameras, scene.depth_range), scene)


@pytest.mark.parametrize("views", range(2, 10))
def test_any_number_of_views(model: GBiNet, make_tiny_scene: Any, views: int) -> None:
    scene = make_tiny_scene(views, 24, 32)
    assert_sensible(model.predict(scene.images, scene.cameras, scene.depth_range), scene)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(make_tiny_scene: Any, preset: str) -> None:
    scene = make_tiny_scene(2, 24, 32)
    assert_sensible(GBiNet(preset).predict(scene.images, scene.cameras, scene.depth_range), scene)


@pytest.mark.parametrize(
    "change",
    [
        {"first_bins": 16},
        {"inverse_depth": True},
        {"readout": "expectation"},
        {"bins": 8, "stages": 3},
        {"stages": 11},
        {"scale_of_stage": (0, 1, 2, 3)},
        {"scale_of_stage": (3,), "stages": 2},
    ],
    ids=str,
)
def test_every_choice_of_the_configuration(make_tiny_scene: Any, change: dict[str, Any]) -> None:
    scene = make_tiny_scene(3, 24, 32)
    config = replace(SMALL, **change)
    result = run(network(config), scene, keep_stages=True)
    assert_sensible(result, scene)
    assert len(result.stages) == config.stages


def test_half_precision_on_the_cpu(make_tiny_scene: Any, dtype: torch.dtype) -> None:
    """All types run; the first stages, where bins are wide, mostly agree with float32."""
    scene = make_tiny_scene(3, 32, 40)
    exact = network().predict(scene.images, scene.cameras, scene.depth_range, stages=2)
    found = network().to(dtype).predict(scene.images, scene.cameras, scene.depth_range, stages=2)
    assert_sensible(found, scene)
    assert (found.depth == exact.depth).float().mean() > 0.9


# ---- laws --------------------------------------------------------------------------------------------------


def test_a_batch_equals_its_samples_one_by_one(model: GBiNet, make_tiny_scene: Any) -> None:
    scenes = [make_tiny_scene(3, 24, 40), make_tiny_scene(3, 24, 40)]
    scenes[1] = replace(scenes[1], images=scenes[1].images.flip(1), depth_range=DepthRange(3.0, 5.0))
    ends = torch.tensor([[s.depth_range.near, s.depth_range.far] for s in scenes])
    with torch.inference_mode():
        together = model(
            torch.stack([s.images for s in scenes]), Camera.stack([s.cameras for s in scenes]), ends
        )
    for number, scene in enumerate(scenes):
        alone = run(model, scene)
        assert (together.depth[number] == alone.depth[0]).float().mean() > 0.995  # near ties may flip
        difference = (together.confidence[number] - alone.confidence[0]).abs()
        assert (difference < 1e-3).float().mean() > 0.995


def test_predict_is_forward_for_one_sample(model: GBiNet, make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(3, 30, 44)
    found = model.predict(scene.images, scene.cameras, scene.depth_range)
    expected = run(model, scene)
    assert torch.equal(found.depth, expected.depth[0])
    assert found.confidence is not None and torch.equal(found.confidence, expected.confidence[0])
    assert (found.camera.width, found.camera.height) == (44, 30)


def test_kept_stages_lead_to_the_result(model: GBiNet, make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(3, 36, 52)  # padded to 40 x 56
    result = run(model, scene, keep_stages=True)
    sizes = [tuple(stage.logits.shape[-2:]) for stage in result.stages]
    assert sizes == [(5, 7), (5, 7), (10, 14), (10, 14), (20, 28), (20, 28), (40, 56), (40, 56)]
    confidence = torch.zeros(1, 1, 40, 56)
    for number, stage in enumerate(result.stages, start=1):
        assert stage.state.stage == number - 1 and stage.next_state.stage == number
        probabilities = stage.probabilities
        torch.testing.assert_close(probabilities.sum(1), torch.ones(1, *sizes[number - 1]))
        chosen = search.descend(stage.state, probabilities.argmax(1))
        assert torch.equal(chosen.cell, stage.next_state.cell)
        if number > 1:
            before = search.upsample(result.stages[number - 2].next_state, *sizes[number - 1])
            assert torch.equal(before.cell, stage.state.cell)
        if number <= 6:
            largest = probabilities.amax(1, keepdim=True)
            confidence += F.interpolate(largest, size=(40, 56), mode="nearest") / 6
    torch.testing.assert_close(result.confidence, confidence[:, 0, :36, :52])
    assert torch.equal(result.depth, search.depth(result.stages[-1].next_state)[:, :36, :52])
    assert run(model, scene).stages == ()


def test_fewer_stages_give_the_coarse_depth_at_full_size(model: GBiNet, make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(3, 40, 56)
    every = run(model, scene, keep_stages=True)
    coarse = run(model, scene, stages=2)
    expected = search.depth(every.stages[1].next_state)  # [1, 5, 7]
    expected = expected.repeat_interleave(8, 1).repeat_interleave(8, 2)
    assert torch.equal(coarse.depth, expected)


def test_units_do_not_matter(model: GBiNet, make_tiny_scene: Any) -> None:
    """The same scene in other units (millimetres for metres) gives the same depth in those units."""
    scene = make_tiny_scene(3, 24, 32)
    factor = 1024.0
    pose = scene.cameras.cam_from_world.clone()
    pose[:, :3, 3] *= factor
    cameras = replace(scene.cameras, cam_from_world=pose)
    wide = DepthRange(scene.depth_range.near * factor, scene.depth_range.far * factor)
    found = model.predict(scene.images, cameras, wide).depth / factor
    expected = model.predict(scene.images, scene.cameras, scene.depth_range).depth
    assert (found == expected).float().mean() > 0.99


def test_regulariser_takes_any_size_and_pads_as_convolutions_do() -> None:
    torch.manual_seed(0)
    net = Regulariser(4, 2).eval()
    with torch.inference_mode():
        for height, width in ((1, 1), (7, 9), (8, 16), (13, 31)):
            assert net(torch.randn(1, 4, 3, height, width)).shape == (1, 3, height, width)
        volume = torch.randn(1, 4, 3, 16, 24)
        volume[..., 13:, :] = 0
        volume[..., 19:] = 0
        torch.testing.assert_close(net(volume[..., :13, :19]), net(volume)[..., :13, :19])


def test_gradients_reach_every_weight(make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(3, 32, 40)
    model = network().train()
    ends = torch.tensor([[scene.depth_range.near, scene.depth_range.far]])
    result = model(scene.images[None], scene.cameras[None], ends, keep_stages=True)
    sum((stage.logits.float() ** 2).mean() for stage in result.stages).backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_predict_leaves_the_training_mode_as_it_was(make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(2, 16, 16)
    model = network().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.predict(scene.images, scene.cameras, scene.depth_range)
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    with pytest.raises(GBiNetError):
        model.predict(scene.images, scene.cameras, scene.depth_range, stages=0)
    assert model.training


# ---- what it refuses ---------------------------------------------------------------------------------------


def refused(model: GBiNet, scene: Any, says: str, **changes: Any) -> None:
    scene = replace(scene, **changes)
    with pytest.raises(GBiNetError, match=says):
        model.predict(scene.images, scene.cameras, scene.depth_range)


def test_bad_input_is_named(model: GBiNet, make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(3, 16, 24)
    refused(model, scene, "at least 2 views", images=scene.images[:1], cameras=scene.cameras[:1])
    refused(model, scene, re.escape("cameras are [2]"), cameras=scene.cameras[:2])
    refused(model, scene, "24x16 but their cameras say 12x8", cameras=scene.cameras.resized(12, 8))
    refused(model, scene, "divide by 255", images=(255 * scene.images).byte())
    refused(model, scene, "values up to 255: divide by 255", images=255 * scene.images / scene.images.max())
    refused(model, scene, re.escape("must be [V, 3, H, W]"), images=scene.images[:, :1])
    refused(model, scene, re.escape("must be [V, 3, H, W]"), images=scene.images[None])
    broken = scene.images.clone()
    broken[2, 0, 3, 4] = float("nan")
    refused(model, scene, "image 2 has a value that is not finite", images=broken)
    K, pose = scene.cameras.K.clone(), scene.cameras.cam_from_world.clone()
    K[1, 0, 0] = float("nan")
    refused(model, scene, "camera 1: K has a value that is not finite", cameras=replace(scene.cameras, K=K))
    pose[2, 1, 3] = float("inf")
    bad_pose = replace(scene.cameras, cam_from_world=pose)
    refused(model, scene, "camera 2: cam_from_world has a value", cameras=bad_pose)


@pytest.mark.parametrize("ends", [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (1.0, float("nan"))])
def test_impossible_ranges(ends: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="0 < near < far, got near="):
        DepthRange(*ends)


def test_forward_checks_shapes_too(model: GBiNet, make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(3, 16, 24)
    ends = torch.tensor([[2.5, 6.5]])
    with pytest.raises(InputError, match="at least 2 views"):
        model(scene.images[None, :1], scene.cameras[None, :1], ends)
    with pytest.raises(InputError, match=re.escape("must be [B, V, 3, H, W]")):
        model(scene.images, scene.cameras, ends)
    with pytest.raises(InputError, match=re.escape("[1, 2], got [2]")):
        model(scene.images[None], scene.cameras[None], ends[0])


def test_choices_that_do_not_exist_are_named(model: GBiNet, make_tiny_scene: Any) -> None:
    scene = make_tiny_scene(2, 16, 24)
    with pytest.raises(InputError, match="stages must be at least 1, got 0"):
        model.predict(scene.images, scene.cameras, scene.depth_range, stages=0)
    with pytest.raises(InputError, match="unknown readout 'mean'; choose one of centre, expectation"):
        model.predict(scene.images, scene.cameras, scene.depth_range, readout="mean")  # type: ignore[arg-type]
    good = (scene.images, scene.cameras, scene.depth_range)
    for position, (odd, says) in enumerate(
        [
            (scene.images.numpy(), "images must be a tensor [V, 3, H, W], got ndarray"),
            (
                [scene.cameras[i] for i in range(len(scene.images))],
                "Camera.stack makes it of several, got list",
            ),
            ((1.0, 5.0), "depth_range must be a DepthRange(near, far), got tuple"),
        ]
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            model.predict(*good[:position], odd, *good[position + 1 :])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bins": 3}, "bins must be even"),
        ({"first_bins": 2}, "first stage needs at least 4 bins"),
        ({"stages": 0}, "stages must be at least 1"),
        ({"stages": 60}, "stage 60"),
        ({"confidence_stages": -1}, "--confidence-stages"),
        ({"encoder_width": 0}, "--encoder-width"),
        ({"encoder_width": 3}, "must divide the channels"),
        ({"groups": (8, 8, 8)}, "one number per scale"),
        ({"groups": (8, 8, 8, 0)}, "must divide the channels"),
        ({"scale_of_stage": ()}, "--scale-of-stage"),
        ({"scale_of_stage": (0, 4)}, "--scale-of-stage"),
        ({"scale_of_stage": (1, 0)}, "--scale-of-stage"),
        ({"readout": "magic"}, "readout 'magic'"),
    ],
    ids=str,
)
def test_impossible_configurations(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        GBiNetConfig(**change)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="gbinet, binet, gbinet-6"):
        GBiNet("gbinet-5")
