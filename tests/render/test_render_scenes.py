"""Laws of whole scenes: views agree with each other, seeds decide everything, every kind is worth seeing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.render import (
    KINDS,
    RenderConfig,
    RenderedSource,
    RenderScene,
    make_scene,
    render,
    validation_samples,
)
from gbinet.render.paint import PAINTERS, paint
from gbinet.render.rig import depth_range, draw_rig
from gbinet.render.seeding import generator, hash_uniform
from gbinet.render.sensor import IDEAL, SensorConfig, expose
from gbinet.render.shapes import SHAPES
from gbinet.render.texture import TexturePack, make_texture, sample

SMALL = RenderConfig(width=48, height=40, views=3, scenes_at_once=2, samples_per_scene=2)


def matt(scene: RenderScene) -> RenderScene:
    """The scene without highlights and reflections."""
    materials = scene.materials.clone()
    materials[:, 3] = 0
    materials[:, 5] = 0
    return replace(scene, materials=materials)


def looked_up(values: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Bilinear values [C, P] of [C, H, W] at pixel coordinates [P, 2]."""
    size = torch.tensor([values.shape[2], values.shape[1]], dtype=pixels.dtype)
    grid = (pixels / size * 2 - 1)[None, None].to(values.dtype)
    return F.grid_sample(values[None], grid, align_corners=False, padding_mode="border")[0, :, 0]


@pytest.fixture(scope="module", params=["table", "room"])
def pair(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor, Camera]:
    """Ideal images [2, 3, H, W], depths [2, H, W] and cameras of a matt scene."""
    scene = matt(make_scene(11, kind=request.param))
    rig = draw_rig(
        generator(4, 11), request.param, scene.layout, 2, 192, 144, dtu_like=request.param == "table"
    )
    rendering = render(scene, rig.cameras)
    images = expose(rendering.images, generator(1), IDEAL)
    return images, rendering.depth.double(), rig.cameras


def matches(depth: torch.Tensor, cameras: Camera) -> tuple[torch.Tensor, ...]:
    """Pixels of view 0 that view 1 sees too, away from edges: their number, place in view 1, depth there."""
    flat = depth[0].reshape(-1)
    points = cameras[0].unproject(cameras[0].pixel_grid().reshape(-1, 2), flat)
    place, expected = cameras[1].project(points)
    size = torch.tensor([cameras.width, cameras.height])
    inside = (flat > 0) & (expected > 0) & (place > 1).all(-1) & (place < size - 1).all(-1)
    # in the 3 x 3 pixels around, inverse depth is linear: one plane, no edge
    inverse = 1 / depth[1].clamp_min(1e-9)
    around = F.unfold(inverse[None, None], 3, padding=1)[0].view(9, *depth[1].shape)
    bend = (around[0] + around[8] - 2 * around[4]).abs() + (around[2] + around[6] - 2 * around[4]).abs()
    bend = F.max_pool2d((bend / inverse)[None], 5, 1, 2)[0]
    column, row = place.long().unbind(-1)
    calm = bend[row.clamp(0, cameras.height - 1), column.clamp(0, cameras.width - 1)] < 1e-5
    seen = 1 / looked_up(inverse[None], place)[0]  # inverse depth is linear in the image
    visible = (seen / expected - 1).abs() < 0.02
    chosen = (inside & calm & visible).nonzero()[:, 0]
    return chosen, place[chosen], seen[chosen], expected[chosen]


def test_forward_and_backward_agree(pair: tuple[torch.Tensor, torch.Tensor, Camera]) -> None:
    _, depth, cameras = pair
    chosen, place, seen, expected = matches(depth, cameras)
    assert len(chosen) > 500
    assert float((seen / expected - 1).abs().quantile(0.99)) < 1e-4
    back, again = cameras[0].project(cameras[1].unproject(place, seen))
    start = cameras[0].pixel_grid().reshape(-1, 2)[chosen]
    assert float((back - start).norm(dim=-1).quantile(0.99)) < 1e-2
    assert float((again / depth[0].reshape(-1)[chosen] - 1).abs().quantile(0.99)) < 1e-4


def test_warped_source_looks_like_the_reference(pair: tuple[torch.Tensor, torch.Tensor, Camera]) -> None:
    images, depth, cameras = pair
    chosen, place, _, _ = matches(depth, cameras)
    warped = looked_up(images[1], place)
    difference = (warped - images[0].reshape(3, -1)[:, chosen]).abs()
    assert float(difference.median()) < 3 / 255
    moved = looked_up(images[1], place + torch.tensor([4.0, 0.0]))  # the test can fail
    assert float((moved - warped).abs().median()) > float(difference.median())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("terrain", 2), ("terrain", 3), ("facade", 0)])
def test_warped_source_looks_like_the_reference_where_detail_is_as_fine_as_pixels(
    kind: str, seed: int
) -> None:
    """Neighbouring pixels of these scenes differ by 9 to 15 / 255, so that bilinear look-up alone is off by
    more than 3 / 255. Averaging a pixel's area in a source of four times the size is not."""
    scene = matt(make_scene(seed, kind=kind))
    cameras = draw_rig(generator(4, seed), kind, scene.layout, 2, 320, 256).cameras
    depth = render(scene, cameras).depth.double()
    chosen, place, _, _ = matches(depth, cameras)
    fine = expose(render(scene, cameras.resized(1280, 1024)).images, generator(1), IDEAL)
    reference = F.avg_pool2d(fine, 4)[0].reshape(3, -1)[:, chosen]
    averaged = F.avg_pool2d(F.pad(fine[1:], (2, 2, 2, 2), mode="replicate"), 5, 1)[0]
    difference = (looked_up(averaged, place * 4) - reference).abs()
    assert len(chosen) > 500
    assert float(difference.median()) < 3 / 255
    moved = looked_up(averaged, place * 4 + torch.tensor([16.0, 0.0]))
    assert float((moved - reference).abs().median()) > 2 * float(difference.median())


def test_samples_do_not_depend_on_the_batch() -> None:
    config = replace(SMALL, kinds=("facade",))
    one, two = RenderedSource(config), RenderedSource(config).batch(1, 2)
    for number in range(2):
        alone = one.batch(2 + number, 1)
        assert torch.equal(alone.images[0], two.images[number])
        assert torch.equal(alone.depth[0], two.depth[number])
        assert torch.equal(alone.cameras.cam_from_world[0], two.cameras.cam_from_world[number])
        assert torch.equal(alone.depth_range[0], two.depth_range[number])
    assert not torch.equal(two.images[0], two.images[1])
    other = RenderedSource(replace(config, seed=1)).sample(2)
    assert not torch.equal(other.images, two.images[0])


@given(st.integers(1, 9), st.integers(1, 9))
def test_every_scene_serves_its_share(slots: int, uses: int) -> None:
    source = RenderedSource(replace(SMALL, scenes_at_once=slots, samples_per_scene=uses))
    numbers = [source.scene_number(i)[1] for i in range(slots * uses * 4)]
    counts = {n: numbers.count(n) for n in numbers}
    assert max(counts.values()) <= uses
    assert len(set(numbers[:slots])) == slots  # neighbours come from different scenes
    assert sum(c == uses for c in counts.values()) >= 2 * slots


@pytest.mark.parametrize("kind", list(KINDS))
def test_scenes_of_every_kind_show_something(kind: str) -> None:
    batch = RenderedSource(replace(SMALL, kinds=(kind,), seed=3, scenes_at_once=1)).batch(0, 2)
    assert batch.images.shape == (2, 3, 3, 40, 48)
    assert bool(torch.isfinite(batch.images).all())
    assert float(batch.images.min()) >= 0 and float(batch.images.max()) <= 1
    assert bool((batch.images.flatten(2).std(-1) > 0.01).all())
    near, far = batch.depth_range.unbind(-1)
    assert bool((near > 0).all()) and bool((far > near).all())
    within = (batch.depth > near[:, None, None]) & (batch.depth < far[:, None, None])
    assert bool((within.flatten(1).float().mean(-1) > 0.2).all())
    batch.cameras[0].check()


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes_are_sound(name: str) -> None:
    for seed in range(3):
        mesh = SHAPES[name](generator(seed, name))
        assert int(mesh.faces.min()) >= 0 and int(mesh.faces.max()) < len(mesh.positions)
        assert len(mesh.uv) == len(mesh.normals) == len(mesh.positions)
        corners = mesh.positions[mesh.faces]
        areas = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).norm(dim=-1)
        assert float((areas > 1e-12).float().mean()) > 0.9
        assert float((mesh.normals.norm(dim=-1) - 1).abs().max()) < 1e-3
        size = (mesh.positions.amax(0) - mesh.positions.amin(0)).max()
        assert 0.3 < float(size) < 3
        assert float(mesh.uv.std()) > 0


@pytest.mark.parametrize("name", list(PAINTERS))
def test_textures_are_sound(name: str) -> None:
    one, two = (paint(generator(seed, name), name, 128).texels.float() for seed in (1, 2))
    assert len(one) == sum(4**k for k in range(8))
    assert float(one[: 128 * 128, :3].std()) > (0.2 if name == "blank" else 1)
    assert not torch.equal(one, two)
    assert torch.equal(one, paint(generator(1, name), name, 128).texels.float())


def test_texture_rows_run_from_the_top() -> None:
    """Row = (1 - v) * height, column = u * width; the mean is what is seen from far away."""
    image = torch.zeros(3, 8, 8)
    image[0, 0, :] = 1  # red top row
    image[1, :, 0] = 1  # green left column
    pack = TexturePack.of([make_texture(image)])
    uv = torch.tensor([[0.5, 1 - 0.5 / 8], [0.5 / 8, 0.5], [0.5 / 8 + 3, 0.5 - 7]])
    colours = sample(pack, torch.zeros(3, dtype=torch.long), uv, torch.ones(3))
    assert colours[0].tolist() == [1, 0, 0]
    assert colours[1].tolist() == [0, 1, 0]
    assert colours[2].tolist() == [0, 1, 0]
    far = sample(pack, torch.zeros(1, dtype=torch.long), torch.tensor([[0.3, 0.3]]), torch.tensor([99.0]))
    assert torch.allclose(far[0, :2], torch.full((2,), 1 / 8), atol=1 / 255)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(["table", "room", "facade", "terrain"]))
def test_rigs_are_usable(seed: int, kind: str) -> None:
    layout = {
        "table": (np.array([0, 0, 0.1]), 0.15, [-3, -3, 0.03], [3, 3, 3]),
        "room": (np.array([0, 0, 1.0]), 2.0, [-2, -2, 0.6], [2, 2, 2.2]),
        "facade": (np.array([0, 0, 4.0]), 8.0, [-12, -25, 0.8], [12, -2, 14]),
        "terrain": (np.array([0, 0, 3.0]), 35.0, [-100, -100, 15], [100, 100, 400]),
    }[kind]
    from gbinet.render.scenery import Layout

    space = Layout(layout[0], layout[1], np.zeros((0, 4)), np.array(layout[2]), np.array(layout[3]), 0.1)
    rig = draw_rig(generator(seed), kind, space, 5, 160, 128)
    rig.cameras.check()
    centres = rig.cameras.centre
    baselines = (centres[1:] - centres[0]).norm(dim=-1) / rig.distance
    assert 0.01 < float(baselines.max()) < 1.0
    flat = torch.full((32, 40), rig.distance)
    near, far = depth_range(generator(seed, "range"), flat, rig).tolist()
    assert 0 < near < far and math.isfinite(far)
    nothing = depth_range(generator(seed, "range"), torch.zeros(32, 40), rig).tolist()
    assert 0 < nothing[0] < nothing[1] < math.inf


def test_sensor_changes_little_and_ideal_nothing() -> None:
    light = torch.rand(2, 3, 33, 41, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.1
    clean = expose(light, generator(2), IDEAL)
    assert torch.equal(clean[0], expose(light, generator(2), IDEAL)[0])
    photo = expose(light, generator(2), SensorConfig())
    assert photo.shape == clean.shape
    assert 0 < float((photo - clean).abs().mean()) < 0.2
    assert torch.equal(photo, expose(light, generator(2), SensorConfig()))
    draws = hash_uniform((1 << 16,), 7, "cpu")
    assert abs(float(draws.mean()) - 0.5) < 0.01 and abs(float(draws.std()) - 12**-0.5) < 0.01


def test_validation_set_is_fixed_and_in_range() -> None:
    first, second = (list(validation_samples("free", size=(50, 36), scenes=1)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.images, b.images)
        assert a.depth_range.tolist() == [425.0, 935.0]
        assert float(((a.depth > 425) & (a.depth < 935)).float().mean()) > 0.3
    with pytest.raises(InputError, match="asset folder"):
        next(validation_samples("assets"))
    with pytest.raises(InputError, match="parts"):
        next(validation_samples("all"))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="table"):
        make_scene(1, kind="moon")
    with pytest.raises(InputError):
        RenderConfig(width=0)
