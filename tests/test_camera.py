"""Laws of the camera: projection undoes unprojection; images and cameras change together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gbinet.camera import Camera, inverse_3x3, pixel_centres
from gbinet.errors import InputError

seeds = st.integers(0, 2**31)
batches = st.sampled_from([(), (1,), (3,), (2, 3)])


def random_rotation(batch: tuple[int, ...], generator: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(*batch, 3, 3, generator=generator, dtype=torch.float64))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return q * torch.linalg.det(q)[..., None, None]  # det = +1


def random_camera(batch: tuple[int, ...], seed: int, width: int = 64, height: int = 48) -> Camera:
    g = torch.Generator().manual_seed(seed)
    K = torch.zeros(*batch, 3, 3, dtype=torch.float64)
    K[..., 0, 0], K[..., 1, 1] = (50 + 100 * torch.rand(2, *batch, generator=g, dtype=torch.float64)).unbind(
        0
    )
    K[..., 0, 1] = torch.randn(batch, generator=g, dtype=torch.float64)  # skew
    K[..., 0, 2], K[..., 1, 2], K[..., 2, 2] = width * 0.47, height * 0.55, 1
    pose = torch.eye(4, dtype=torch.float64).repeat(*batch, 1, 1)
    pose[..., :3, :3] = random_rotation(batch, g)
    pose[..., :3, 3] = torch.randn(*batch, 3, generator=g, dtype=torch.float64)
    return Camera(K, pose, width, height)


def random_pixels(batch: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed + 1)
    size = torch.tensor([64.0, 48.0], dtype=torch.float64)
    pixels = torch.rand(*batch, 7, 2, generator=g, dtype=torch.float64) * size
    return pixels, 0.5 + 9 * torch.rand(*batch, 7, generator=g, dtype=torch.float64)


@given(batches, seeds)
def test_projection_undoes_unprojection(batch: tuple[int, ...], seed: int) -> None:
    camera = random_camera(batch, seed).check()
    pixels, depth = random_pixels(batch, seed)
    pixels_again, depth_again = camera.project(camera.unproject(pixels, depth))
    torch.testing.assert_close(pixels_again, pixels)
    torch.testing.assert_close(depth_again, depth)


@given(batches, seeds)
def test_poses_are_inverse_to_each_other(batch: tuple[int, ...], seed: int) -> None:
    camera = random_camera(batch, seed)
    eye = torch.eye(4, dtype=torch.float64).expand(*batch, 4, 4)
    torch.testing.assert_close(camera.world_from_cam @ camera.cam_from_world, eye)
    in_cam = (
        camera.cam_from_world[..., :3, :3] @ camera.centre[..., None] + camera.cam_from_world[..., :3, 3:]
    )
    torch.testing.assert_close(in_cam, torch.zeros_like(in_cam))


@given(batches, seeds)
def test_inverse_3x3(batch: tuple[int, ...], seed: int) -> None:
    matrix = torch.randn(*batch, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    product = inverse_3x3(matrix) @ matrix
    condition = torch.linalg.cond(matrix)[..., None, None]
    assert ((product - torch.eye(3, dtype=torch.float64)).abs() < 1e-12 * condition**2).all()


def test_the_pixel_rule() -> None:
    """The centre of the top-left pixel is (0.5, 0.5); the last one lies half a pixel inside the border."""
    centres = pixel_centres(3, 5)
    assert centres.shape == (3, 5, 2)
    assert centres[0, 0].tolist() == [0.5, 0.5]
    assert centres[2, 4].tolist() == [4.5, 2.5]
    assert centres[1, 0].tolist() == [0.5, 1.5]  # x before y
    camera = random_camera((), 0, 5, 3)
    assert torch.equal(camera.pixel_grid(), pixel_centres(3, 5, dtype=torch.float64))


@given(seeds, st.sampled_from([0.125, 0.25, 0.5, 2.0]))
def test_scaling_the_image_scales_its_pixels(seed: int, factor: float) -> None:
    camera = random_camera((2,), seed)
    pixels, depth = random_pixels((2,), seed)
    points = camera.unproject(pixels, depth)
    scaled = camera.scaled(factor)
    assert (scaled.width, scaled.height) == (64 * factor, 48 * factor)
    torch.testing.assert_close(scaled.project(points)[0], pixels * factor)
    torch.testing.assert_close(scaled.project(points)[1], depth)
    resized = camera.resized(scaled.width, scaled.height)
    torch.testing.assert_close(resized.K, scaled.K)


@given(seeds, st.integers(1, 200), st.integers(1, 200))
def test_resizing_maps_the_image_onto_the_new_one(seed: int, width: int, height: int) -> None:
    camera = random_camera((), seed)
    pixels, depth = random_pixels((), seed)
    moved = camera.resized(width, height).project(camera.unproject(pixels, depth))[0]
    torch.testing.assert_close(moved, pixels * torch.tensor([width / 64, height / 48], dtype=torch.float64))
    there_and_back = camera.resized(width, height).resized(64, 48)
    torch.testing.assert_close(there_and_back.K, camera.K)


@given(seeds, st.integers(-20, 60), st.integers(-20, 40))
def test_cropping_shifts_the_pixels(seed: int, left: int, top: int) -> None:
    camera = random_camera((3,), seed)
    pixels, depth = random_pixels((3,), seed)
    window = camera.cropped(left, top, 30, 20)
    assert (window.width, window.height) == (30, 20)
    shift = torch.tensor([left, top], dtype=torch.float64)
    torch.testing.assert_close(window.project(camera.unproject(pixels, depth))[0], pixels - shift)
    torch.testing.assert_close(window.cropped(-left, -top, 64, 48).K, camera.K)


@given(seeds)
def test_relative_cameras_see_the_same_from_a_moved_world(seed: int) -> None:
    cameras, reference = random_camera((3,), seed), random_camera((), seed + 1)
    pixels, depth = random_pixels((3,), seed)
    points = cameras.unproject(pixels, depth)
    rotation, translation = reference.cam_from_world[:3, :3], reference.cam_from_world[:3, 3]
    pixels_again, depth_again = cameras.relative_to(reference).project(points @ rotation.mT + translation)
    torch.testing.assert_close(pixels_again, pixels)
    torch.testing.assert_close(depth_again, depth)
    torch.testing.assert_close(
        reference.relative_to(reference).cam_from_world, torch.eye(4, dtype=torch.float64)
    )


def test_depth_is_z_and_may_be_negative() -> None:
    camera = Camera(torch.eye(3), torch.eye(4), 4, 4)
    _, depth = camera.project(torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, -2.0]]))
    assert depth.tolist() == [12.0, -2.0]


def test_gradients_reach_camera_and_points() -> None:
    camera = random_camera((2,), 1)
    pixels, depth = random_pixels((2,), 1)

    def there_and_back(K: Tensor, pose: Tensor, pixels: Tensor, depth: Tensor) -> Tensor:
        moved = torch.tensor([[0.1, -0.2, 0.05]], dtype=torch.float64)
        return Camera(K, pose, 64, 48).project(camera.unproject(pixels, depth) + moved)[0]

    inputs = [t.clone().requires_grad_() for t in (camera.K, camera.cam_from_world, pixels, depth)]
    assert torch.autograd.gradcheck(there_and_back, inputs)


def test_indexing_stacking_and_moving_keep_the_values() -> None:
    cameras = random_camera((4,), 5)
    again = Camera.stack([cameras[i] for i in range(4)])
    assert torch.equal(again.K, cameras.K) and torch.equal(again.cam_from_world, cameras.cam_from_world)
    assert cameras[1:3].batch_shape == (2,) and cameras[None].batch_shape == (1, 4)
    assert cameras.to(dtype=torch.float32).K.dtype == torch.float32
    with pytest.raises(InputError, match="zero cameras"):
        Camera.stack([])
    with pytest.raises(InputError, match="one image size"):
        Camera.stack([cameras[0], cameras[1].scaled(0.5)])


@pytest.mark.parametrize(
    ("K", "pose", "size", "says"),
    [
        (torch.eye(4), torch.eye(4), (4, 4), "intrinsics"),
        (torch.eye(3), torch.eye(3), (4, 4), "cam_from_world"),
        (torch.eye(3).expand(2, 3, 3), torch.eye(4), (4, 4), "batch axes"),
        (torch.eye(3), torch.eye(4), (0, 4), "size"),
    ],
)
def test_shapes_that_cannot_be_are_refused(K: Tensor, pose: Tensor, size: tuple[int, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Camera(K, pose, *size)


def broken_intrinsics(row: int, column: int, value: float) -> Camera:
    camera = random_camera((3,), 0)
    camera.K[1, row, column] = value
    return camera


def broken_pose(row: int, column: int, value: float) -> Camera:
    camera = random_camera((3,), 0)
    camera.cam_from_world[1, row, column] = value
    return camera


def mirrored() -> Camera:
    camera = random_camera((3,), 0)
    camera.cam_from_world[1, 0, :3] *= -1
    return camera


@pytest.mark.parametrize(
    ("camera", "says"),
    [
        (broken_intrinsics(0, 2, float("nan")), "camera 1: K .* not finite"),
        (broken_intrinsics(0, 0, -5.0), "camera 1: .* focal length"),
        (broken_intrinsics(1, 1, 0.0), "camera 1: .* focal length"),
        (broken_intrinsics(2, 0, 32.0), "camera 1: .* last row"),
        (broken_pose(0, 3, float("inf")), "camera 1: cam_from_world .* not finite"),
        (broken_pose(0, 0, 7.0), "camera 1: .* orthonormal"),
        (broken_pose(3, 0, 1.0), "camera 1: .* last row"),
        (mirrored(), "camera 1: .* mirrors"),
    ],
)
def test_broken_values_are_named_with_their_place(camera: Camera, says: str) -> None:
    with pytest.raises(InputError, match=says):
        camera.check()


def test_a_single_broken_camera_has_no_number() -> None:
    camera = random_camera((), 0)
    camera.K[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"^view left: K has"):
        camera.check("view left")
