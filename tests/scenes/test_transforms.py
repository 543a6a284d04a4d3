"""Image, camera, depth and mask change together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.errors import InputError
from gbinet.scenes.transforms import (
    ColourJitter,
    Frame,
    centre_crop,
    cover,
    crop,
    depth_pyramid,
    resize,
    resize_nearest,
)

WIDTH, HEIGHT = 96, 64


def ramp_frame() -> Frame:
    """Colours are pixel coordinates (x, y), depth a step at x = 48: content that tells where it came from."""
    K = torch.tensor([[80.0, 0.3, 47], [0, 82, 30], [0, 0, 1]], dtype=torch.float64)
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, 3] = torch.tensor([0.2, -0.1, 0.3])
    camera = Camera(K, pose, WIDTH, HEIGHT)
    x, y = camera.pixel_grid().float().unbind(-1)
    depth = torch.where(x < 48, 2.0, 5.0)
    return Frame(torch.stack([x, y, torch.zeros_like(x)]), camera, depth, y > 20)


def content_at(frame: Frame, pixels: torch.Tensor) -> torch.Tensor:
    """Bilinear colour at pixel coordinates [N, 2] -> the (x, y) that it had in the original, [N, 2]."""
    size = torch.tensor([frame.width, frame.height], dtype=torch.float64)
    grid = (pixels / size * 2 - 1).float()[None, None]
    sampled = F.grid_sample(frame.image[None], grid, align_corners=False, padding_mode="border")
    return sampled[0, :2, 0].T.double()


def points_seen_at(camera: Camera, pixels: torch.Tensor, seed: int) -> torch.Tensor:
    depth = 1 + 4 * torch.rand(
        len(pixels), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return camera.unproject(pixels, depth)


transformations = st.lists(
    st.one_of(
        st.tuples(st.just("resize"), st.integers(24, 200), st.integers(20, 150)),
        st.tuples(st.just("cover"), st.integers(24, 200), st.integers(20, 150)),
        st.tuples(st.just("crop"), st.floats(0, 1), st.floats(0, 1)),
        st.tuples(st.just("centre"), st.floats(0.4, 1), st.floats(0.4, 1)),
    ),
    min_size=1,
    max_size=3,
).filter(lambda steps: sum(step[0] in ("resize", "cover") for step in steps) <= 1)


def apply(frame: Frame, steps) -> Frame:
    for kind, a, b in steps:
        if kind == "resize":
            frame = resize(frame, a, b)
        elif kind == "cover":
            frame = cover(frame, a, b)
        elif kind == "centre":
            frame = centre_crop(frame, max(8, int(frame.width * a)), max(8, int(frame.height * b)))
        else:
            w, h = max(8, frame.width // 2), max(8, frame.height // 2)
            frame = crop(frame, int(a * (frame.width - w)), int(b * (frame.height - h)), w, h)
    return frame


@settings(max_examples=100, deadline=None)
@given(transformations, st.integers(0, 2**31))
def test_points_project_to_the_same_content(steps, seed):
    before = ramp_frame()
    after = apply(before, steps)
    # Pixels well inside the new image: at its border the content stops, and resizing repeats the last pixel.
    scale = min(after.width / WIDTH, after.height / HEIGHT, 1.0)
    margin = min(4.0 + 2 / scale, after.width / 3, after.height / 3)
    g = torch.Generator().manual_seed(seed)
    inside = margin + torch.rand(50, 2, generator=g, dtype=torch.float64) * (
        torch.tensor([after.width, after.height]) - 2 * margin
    )
    points = points_seen_at(after.camera, inside, seed)
    expected, _ = before.camera.project(points)  # where these points were in the original image
    projected, _ = after.camera.project(points)
    assert torch.allclose(projected, inside, atol=1e-6)
    found = content_at(after, projected)
    keep = ((expected > 6) & (expected < torch.tensor([WIDTH - 6, HEIGHT - 6]))).all(-1)
    # A smoothing filter cut to whole pixels errs by up to 0.075 px on a ramp; half a pixel would be 0.5.
    assert (found - expected)[keep].abs().max() < 0.1 if keep.any() else True


@settings(max_examples=60, deadline=None)
@given(transformations)
def test_depth_and_mask_are_never_mixed_and_stay_in_place(steps):
    after = apply(ramp_frame(), steps)
    assert after.depth.shape == after.mask.shape == (after.height, after.width) == after.image.shape[1:]
    assert set(after.depth.unique().tolist()) <= {2.0, 5.0}
    original, _ = ramp_frame().camera.project(
        after.camera.unproject(
            after.camera.pixel_grid().reshape(-1, 2), torch.ones(after.depth.numel()).double()
        )
    )
    x, y = original.reshape(after.height, after.width, 2).unbind(-1)
    sure = (x - 48).abs() > 1.0  # a pixel of the original is 1 wide
    assert torch.equal(after.depth[sure] < 3, (x < 48)[sure])
    sure = (y - 20.5).abs() > 1.5
    assert torch.equal(after.mask[sure], (y > 20)[sure])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_pyramid_is_torch_nearest_exact_and_resize_nearest(dtype):
    values = (torch.rand(48, 64, generator=torch.Generator().manual_seed(0)) * 200).to(dtype)
    levels = depth_pyramid(values)
    assert [tuple(level.shape) for level in levels] == [(6, 8), (12, 16), (24, 32), (48, 64)]
    for level in levels:
        h, w = level.shape
        exact = F.interpolate(values[None, None].float(), (h, w), mode="nearest-exact")[0, 0].to(dtype)
        assert torch.equal(level, exact)
        assert torch.equal(level, resize_nearest(values, w, h))
    batched = depth_pyramid(values[None], (4,))[0]
    assert torch.equal(batched[0], levels[1])
    with pytest.raises(InputError, match="divided by 8"):
        depth_pyramid(torch.zeros(12, 16))


def test_a_window_outside_the_image_is_refused():
    for window in [(-1, 0, 8, 8), (0, 60, 8, 8), (0, 0, WIDTH + 1, 8)]:
        with pytest.raises(InputError, match="window"):
            crop(ramp_frame(), *window)


def test_jitter_draws_per_view_stays_in_range_and_repeats():
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    jitter = ColourJitter(0.5, 0.5, 0.5)
    once, twice = (jitter(images, np.random.default_rng(1)) for _ in range(2))
    assert torch.equal(once, twice) and not torch.equal(once, jitter(images, np.random.default_rng(2)))
    assert once.min() >= 0 and once.max() <= 1
    same = jitter(images[:1].expand(3, -1, -1, -1), np.random.default_rng(3))
    assert not torch.equal(same[0], same[1])
    assert torch.equal(ColourJitter()(images, np.random.default_rng(0)), images)


def test_brightness_scales_and_saturation_keeps_grey():
    images = torch.full((1, 3, 4, 4), 0.4)
    bright = ColourJitter(brightness=0.5)(images, np.random.default_rng(0))
    assert 0.2 <= bright.mean() <= 0.6 and bright.std() < 1e-6 and abs(bright.mean() - 0.4) > 1e-4
    assert torch.allclose(ColourJitter(saturation=0.9)(images, np.random.default_rng(0)), images, atol=1e-6)
    assert torch.allclose(ColourJitter(contrast=0.9)(images, np.random.default_rng(0)), images, atol=1e-6)
    with pytest.raises(InputError):
        ColourJitter(brightness=1.5)
