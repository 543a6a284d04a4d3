"""Difficulties of real photos: every one does what it says and nothing else, and seeds decide all."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.render import (
    KINDS,
    Difficulties,
    Difficulty,
    RenderConfig,
    RenderedSource,
    RenderScene,
    Sample,
    life_samples,
    make_scene,
    render_depth,
    render_sample,
    validation_samples,
)
from gbinet.render.alter import altered
from gbinet.render.difficulties import NAMES, OF_SAMPLES, OF_SCENES
from gbinet.render.props import Store
from gbinet.render.rig import Habits, draw_rig, widened
from gbinet.render.scenery import Draft, Layout, Material, Part, look_at
from gbinet.render.seeding import generator
from gbinet.render.sensor import IDEAL, expose
from gbinet.render.shapes import pose, quad
from gbinet.render.texture import make_texture
from gbinet.render.thin import THIN_SHAPES

# Mean and deviation of the images, mean depth, red of a pixel in every view, four depths.
PINNED = [0.4064319, 0.1405619, 1212.422, 0.3202658, 0.4971399, 0.1562224, 0.3766145, 0.3625837]
PINNED += [4969.46, 927.9407, 684.483, 542.2235]
SMALL = RenderConfig(width=64, height=48, views=3, scenes_at_once=2, samples_per_scene=2)
ORDINARY = Difficulties().only()
LAYOUT = Layout(np.zeros(3), 0.2, np.zeros((0, 4)), -np.ones(3) * 3, np.ones(3) * 3, 0.1)


def scene_with(*names: str, seed: int = 7, kind: str = "table") -> RenderScene:
    return make_scene(seed, None, kind, "cpu", Difficulties().only(*names))


def sample_with(*names: str, scene: RenderScene) -> Sample:
    return render_sample(scene, (3, 1), replace(SMALL, difficulties=Difficulties().only(*names)))


@pytest.fixture(scope="module")
def plain_scene() -> RenderScene:
    return scene_with()


@pytest.fixture(scope="module")
def plain(plain_scene: RenderScene) -> Sample:
    return sample_with(scene=plain_scene)


# ---- the old distribution ----------------------------------------------------------------------------------


def test_the_validation_set_is_pinned() -> None:
    """Numbers of the first scene as it was before there were difficulties."""
    sample = next(validation_samples("free", size=(160, 128), scenes=1))
    found = [float(sample.images.mean()), float(sample.images.std()), float(sample.depth.mean())]
    found += sample.images[:, 0, 64, 80].tolist() + sample.depth[::40, 80].tolist()
    torch.testing.assert_close(torch.tensor(found), torch.tensor(PINNED), rtol=1e-4, atol=1e-3)


def test_the_share_of_difficult_scenes_is_kept_and_the_rest_is_like_dtu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str | None, Difficulties | None]] = []

    def note(seed: int, library: object, kind: str | None, device: object, hard: Difficulties | None) -> None:
        asked.append((kind, hard))

    monkeypatch.setattr("gbinet.render.source.make_scene", note)
    for life in (0.0, 0.4):
        asked.clear()
        source = RenderedSource(replace(SMALL, life=life, dtu_like=True, seed=4))
        for number in range(200):
            source.scene(number)
        lifelike = [kind for kind, hard in asked if hard is not None]
        assert abs(len(lifelike) / 200 - life) < 0.1 and set(lifelike) <= {None}  # all kinds
        assert {kind for kind, hard in asked if hard is None} == {"table"}
    with pytest.raises(InputError, match="life"):
        RenderConfig(life=1.5)


# ---- all of them -------------------------------------------------------------------------------------------


def test_difficulties_are_switched_on_alone() -> None:
    assert set(OF_SCENES) | set(OF_SAMPLES) == set(NAMES) == {f.name for f in fields(Difficulties)}
    for name in NAMES:
        alone = Difficulties().only(name)
        assert set(alone.drawn(NAMES, 5)) == {name}
        assert getattr(alone, name).amount == getattr(Difficulties(), name).amount
    with pytest.raises(InputError, match="gloss"):
        Difficulties().only("fog")
    with pytest.raises(InputError, match="paint"):
        Difficulties(paint=Difficulty(2.0, 1.0))


@given(st.integers(0, 1 << 40), st.sampled_from(NAMES))
def test_what_is_drawn_does_not_depend_on_the_other_difficulties(seed: int, name: str) -> None:
    among_all = Difficulties().drawn(NAMES, seed)
    share = getattr(Difficulties(), name)
    alone = replace(ORDINARY, **{name: share}).drawn(NAMES, seed)
    expected = name in alone and not (name == "wide" and "forward" in among_all)
    assert (name in among_all) == expected


def test_a_sample_that_goes_forward_is_not_wide(plain_scene: RenderScene) -> None:
    both = sample_with("wide", "forward", scene=plain_scene)
    alone = sample_with("forward", scene=plain_scene)
    assert both.difficulties == alone.difficulties == ("forward",)
    assert torch.equal(both.cameras.cam_from_world, alone.cameras.cam_from_world)


def test_samples_with_difficulties_follow_from_their_number() -> None:
    config = replace(SMALL, life=1.0, kinds=("table",), visibility=True, scenes_at_once=1)
    alone, together = RenderedSource(config).batch(1, 1), RenderedSource(config).batch(0, 2)
    assert alone.visible is not None and alone.complete is not None and len(alone.tensors()) == 8
    for a, b in zip(alone.tensors(), together.tensors(), strict=True):
        assert torch.equal(a[0], b[1])


# ---- of scenes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def room() -> tuple[Draft, Store]:
    rng = generator(7)
    store = Store(rng, None, torch.device("cpu"))
    return KINDS["room"](rng, store), store


def changed(name: str, room: tuple[Draft, Store]) -> Draft:
    return altered(room[0], "room", 7, {name: getattr(Difficulties(), name).amount}, room[1])


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("gloss", {"thing", "wall", "ceiling", "ground", "hung"}),
        ("paint", {"thing", "wall", "ceiling", "ground", "hung"}),
        ("plastic", {"thing"}),
        ("glass", {"thing", "hung"}),
    ],
)
def test_surfaces_change_and_shapes_do_not(name: str, roles: set[str], room: tuple[Draft, Store]) -> None:
    before, after = room[0], changed(name, room)
    same = ("lights", "ambient", "surroundings", "layout")
    assert all(getattr(after, name) is getattr(before, name) for name in same)
    assert all(a.mesh is b.mesh for a, b in zip(after.parts, before.parts, strict=True))
    together = zip(after.parts, before.parts, strict=True)
    pairs = [(a, b) for a, b in together if a.material is not b.material]
    assert pairs and {b.role for _, b in pairs} <= roles
    for a, _ in pairs:
        assert name != "gloss" or a.material.specular > 0.25
        assert name != "glass" or a.material.mirror >= 0.6
        flat = a.material.texture.texels[: 1 << 18, :3].float().std(0)
        assert name not in ("paint", "plastic") or float(flat.max()) < 10


@pytest.mark.parametrize("name", ["thin", "repetition"])
def test_thin_things_and_fences_are_added(name: str, room: tuple[Draft, Store]) -> None:
    before, after = room[0], changed(name, room)
    count = len(before.parts)
    assert len(after.parts) > count
    assert all(a.mesh is b.mesh for a, b in zip(after.parts[:count], before.parts, strict=True))
    if name == "thin":
        assert all(a is b for a, b in zip(after.parts[:count], before.parts, strict=True))
    assert len(after.layout.obstacles) > len(before.layout.obstacles)


@given(st.integers(0, 3), st.floats(0.3, 2.0))
def test_cameras_stay_before_the_walls_of_a_table(quarter: int, distance: float) -> None:
    wall = quad(np.array([-4.0, distance, -1.0]), np.array([8.0, 0, 0]), np.array([0, 0, 4.0]))
    turned = wall.moved(pose(0, 0, 0, quarter * np.pi / 2, 0, 1))
    material = Material(make_texture(torch.zeros(3, 4, 4)))
    draft = Draft([Part(turned, material, "wall")], [], ((1, 1, 1), (1, 1, 1)), material.texture, LAYOUT)
    space = altered(draft, "table", 0, {}, Store(generator(0), None, torch.device("cpu"))).layout
    before, after = np.concatenate([LAYOUT.low, LAYOUT.high]), np.concatenate([space.low, space.high])
    moved = np.flatnonzero(np.abs(after - before) > 1e-6)
    assert len(moved) == 1 and abs(abs(after[moved[0]]) - (distance - 0.05)) < 1e-4
    assert np.sign(after[moved[0]]) == np.sign(before[moved[0]])


def test_an_open_background_replaces_walls_and_shades_the_scene(room: tuple[Draft, Store]) -> None:
    before, after = room[0], changed("sky", room)
    assert after.surroundings is not before.surroundings
    gone = [b.role for a, b in zip(after.parts, before.parts, strict=True) if a.mesh is not b.mesh]
    assert set(gone) == {"wall"}
    assert after.ambient[0][0] <= before.ambient[0][0]
    assert after.layout is before.layout


def test_behind_an_open_background_there_is_no_depth() -> None:
    K = torch.tensor([[40.0, 0, 32], [0, 40, 24], [0, 0, 1]])
    level = look_at(np.array([0.9, 0, 0.5]), np.array([0, 0, 0.5]))  # over the table
    camera = Camera(K[None], torch.from_numpy(level).float()[None], 64, 48)
    depth, _ = render_depth(scene_with("sky"), camera)
    assert not bool((depth[0, :10] > 0).any()) and bool((depth[0, 40:] > 0).any())


@pytest.mark.parametrize("name", list(THIN_SHAPES))
def test_thin_shapes_are_thin_and_sound(name: str) -> None:
    for seed in range(3):
        mesh = THIN_SHAPES[name](generator(seed, name))
        assert int(mesh.faces.min()) >= 0 and int(mesh.faces.max()) < len(mesh.positions)
        assert bool(torch.isfinite(mesh.positions).all())
        assert float((mesh.normals.norm(dim=-1) - 1).abs().max()) < 1e-3
        a, b, c = mesh.positions[mesh.faces].unbind(1)
        area = 0.5 * torch.linalg.cross(b - a, c - a).norm(dim=-1)
        shortest = 2 * area / torch.stack([(b - a).norm(dim=-1), (c - b).norm(dim=-1)]).amax(0)
        assert float(shortest.median()) < 0.05
        size = float((mesh.positions.amax(0) - mesh.positions.amin(0)).max())
        assert 0.3 < size < 3


# ---- of photos ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dim", "motion", "defocus", "exposure"])
def test_photos_change_and_geometry_does_not(name: str, plain: Sample, plain_scene: RenderScene) -> None:
    after = sample_with(name, scene=plain_scene)
    assert torch.equal(after.depth, plain.depth) and torch.equal(after.depth_range, plain.depth_range)
    assert torch.equal(after.cameras.cam_from_world, plain.cameras.cam_from_world)
    assert torch.equal(after.cameras.K, plain.cameras.K)
    assert float((after.images - plain.images).abs().max()) > 0.02
    assert after.difficulties == (name,)


def test_dim_photos_are_darker_and_moved_ones_smoother() -> None:
    light = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    clean = expose(light, generator(1), IDEAL)
    dim = expose(light, generator(1), replace(IDEAL, dim=0.05))
    assert bool((dim.mean((1, 2, 3)) < 0.9 * clean.mean((1, 2, 3))).all())
    moved, blurred = (expose(light, generator(1), replace(IDEAL, **{k: 5.0})) for k in ("motion", "defocus"))
    for image in (moved, blurred):
        steps = image.diff(dim=-1).abs().mean((1, 2, 3)) / clean.diff(dim=-1).abs().mean((1, 2, 3))
        assert float(steps.min()) < 0.6 and float(steps.max()) < 1.01
    flat = torch.full((2, 3, 32, 32), 0.3)
    for given_ in ({"motion": 5.0}, {"defocus": 3.0}):  # light is spread, not lost
        same = expose(flat, generator(2), replace(IDEAL, **given_))
        torch.testing.assert_close(same, expose(flat, generator(2), IDEAL))


def test_what_is_in_focus_stays_sharp() -> None:
    light = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    depth = torch.full((1, 64, 64), 2.0)
    depth[..., :20] = 20.0
    sharp = expose(light, generator(1), IDEAL)
    image = expose(light, generator(1), replace(IDEAL, defocus=4.0), depth)
    torch.testing.assert_close(image[..., 20:], sharp[..., 20:])
    assert float(image[..., :20].diff(dim=-1).abs().mean()) < 0.7 * float(
        sharp[..., :20].diff(dim=-1).abs().mean()
    )


def test_a_view_of_nothing_is_out_of_focus_and_changes_no_other() -> None:
    light = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    near = torch.full((2, 16, 16), 2.0)
    near[:, :4] = torch.inf  # some sky
    empty = near.clone()
    empty[1] = torch.inf
    blur = replace(IDEAL, defocus=2.5)
    image = expose(light, generator(0), blur, empty)
    torch.testing.assert_close(image[1], expose(light, generator(0), blur)[1])
    assert torch.equal(image[0], expose(light, generator(0), blur, near)[0])


# ---- of cameras --------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_cameras_are_placed_as_their_difficulty_says(seed: int) -> None:
    def rig(**habits: float):  # type: ignore[no-untyped-def]
        return draw_rig(generator(seed), "table", LAYOUT, 5, 64, 48, None, Habits(**habits))

    usual, turned = rig().cameras, rig(roll=1.0).cameras
    torch.testing.assert_close(usual.centre, turned.centre)
    torch.testing.assert_close(usual.cam_from_world[:, 2], turned.cam_from_world[:, 2])  # lines of sight
    across = (usual.cam_from_world[:, 0, :3] * turned.cam_from_world[:, 0, :3]).sum(-1)
    assert float(across.abs().max()) < 1e-9

    above = rig(above=90.0).cameras
    assert float(above.cam_from_world[0, 2, 2]) < -np.sin(np.radians(60))  # looks down

    found = rig(wide=45.0)
    centres = found.cameras.centre
    target = centres[0] + found.distance * found.cameras.cam_from_world[0, 2, :3]
    away = centres - target
    cosines = (away[1:] * away[0]).sum(-1) / (away[1:].norm(dim=-1) * away[0].norm())
    angles = torch.rad2deg(torch.acos(cosines))
    assert float(angles.max()) <= 45.01 and float(angles.max()) > 10

    found = rig(forward=0.3)
    step = found.cameras.centre[1:] - found.cameras.centre[0]
    ahead = step @ found.cameras.cam_from_world[0, 2, :3]
    assert float((ahead.abs() / step.norm(dim=-1)).min()) > 0.85
    assert float((step.norm(dim=-1) / found.distance).max()) <= 0.3 + 1e-6


@given(st.integers(0, 10_000), st.floats(0.1, 100), st.floats(1.05, 40), st.floats(2, 50))
def test_ranges_get_wider_and_not_too_wide(seed: int, near: float, ratio: float, largest: float) -> None:
    limits = torch.tensor([near, near * ratio])
    wide = widened(generator(seed), limits, largest)
    assert float(wide[0]) <= near * 1.0001 and float(wide[1]) >= near * ratio * 0.9999
    assert float(wide[1] / wide[0]) <= max(ratio, largest) * 1.001


# ---- the validation set ------------------------------------------------------------------------------------


def test_life_set_is_fixed_and_names_its_difficulties() -> None:
    first, second = (next(life_samples(size=(48, 32), views=2, chosen=("roll",))) for _ in range(2))
    assert first.name == "roll/00" and first.difficulties == ("roll",)
    assert torch.equal(first.images, second.images) and torch.equal(first.depth, second.depth)
    assert len(first.batch()) == 1
    with pytest.raises(InputError, match="mixed"):
        next(life_samples(chosen=("fog",)))
