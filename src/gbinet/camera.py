"""The pinhole camera, and the one pixel rule of the project.

THE pixel rule: the centre of the top-left pixel is at (0.5, 0.5). The image covers [0, width] x [0, height].
It holds at every scale and for every file format; nothing outside this file knows where a pixel's centre is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gbinet.errors import InputError

CENTRE = 0.5  # where a pixel's centre is, from its upper left corner


def pixel_centres(
    height: int, width: int, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Coordinates (x, y) of all pixel centres, [height, width, 2]."""
    ys = torch.arange(height, device=device, dtype=dtype) + CENTRE
    xs = torch.arange(width, device=device, dtype=dtype) + CENTRE
    return torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)


def inverse_3x3(matrix: Tensor) -> Tensor:
    """Inverse of [..., 3, 3] matrices by cross products; torch.linalg.inv would wait for the GPU."""
    a, b, c = matrix.unbind(-2)  # rows
    cofactors = torch.stack(
        [torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], dim=-1
    )
    determinant = (a * cofactors[..., 0]).sum(-1)
    return cofactors / determinant[..., None, None]


@dataclass(frozen=True)
class Camera:
    """One pinhole camera or a batch of cameras with images of the same size.

    Axes of the camera frame: x right, y down, z forward. Depth is z in this frame. The centre of the top-left
    pixel is (0.5, 0.5). All methods are differentiable in K, cam_from_world and their arguments, and keep the
    leading batch axes.

    Attributes:
        K: Intrinsics in pixels, [..., 3, 3].
        cam_from_world: Rigid transform from world to camera, [..., 4, 4]; its last row is 0 0 0 1.
        width: Width of the image in pixels.
        height: Height of the image in pixels.

    Raises:
        InputError: If shapes do not fit together or the size is not positive.

    Example:
        >>> import torch
        >>> from gbinet import Camera
        >>> K = torch.tensor([[100.0, 0, 64], [0, 100.0, 48], [0, 0, 1]])
        >>> camera = Camera(K, torch.eye(4), width=128, height=96)
        >>> pixels, depth = camera.project(torch.tensor([[0.0, 0.0, 2.0]]))
        >>> pixels.tolist(), depth.tolist()
        ([[64.0, 48.0]], [2.0])
    """

    K: Tensor  # [..., 3, 3] intrinsics, in pixels
    cam_from_world: Tensor  # [..., 4, 4] rigid transform, last row 0 0 0 1
    width: int
    height: int

    # ---- construction --------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        if self.K.shape[-2:] != (3, 3):
            raise InputError(f"camera intrinsics K must be [..., 3, 3], got {list(self.K.shape)}")
        if self.cam_from_world.shape[-2:] != (4, 4):
            raise InputError(f"cam_from_world must be [..., 4, 4], got {list(self.cam_from_world.shape)}")
        if self.K.shape[:-2] != self.cam_from_world.shape[:-2]:
            raise InputError(
                f"K and cam_from_world disagree in their batch axes: "
                f"{list(self.K.shape[:-2])} and {list(self.cam_from_world.shape[:-2])}"
            )
        if self.width < 1 or self.height < 1:
            raise InputError(f"camera image size must be positive, got {self.width}x{self.height}")

    @staticmethod
    def stack(cameras: Sequence[Camera]) -> Camera:
        """Make one batch from cameras of the same image size, along a new first axis.

        Args:
            cameras: One camera or more, all with the same width, height and batch axes.

        Returns:
            A camera with one more batch axis in front.

        Raises:
            InputError: If there are none, or their image sizes differ.
        """
        if not cameras:
            raise InputError("cannot stack zero cameras")
        sizes = {(c.width, c.height) for c in cameras}
        if len(sizes) > 1:
            raise InputError(
                f"cameras in a batch need one image size, got {sorted(sizes)}; resize them first"
            )
        return Camera(
            torch.stack([c.K for c in cameras]),
            torch.stack([c.cam_from_world for c in cameras]),
            cameras[0].width,
            cameras[0].height,
        )

    def check(self, name: str = "camera") -> Camera:
        """Return self if every value is usable.

        Args:
            name: What to call the camera in the error.

        Raises:
            InputError: Says which camera of the batch is broken and how: values that are not finite, a focal
                length that is not positive, a pose that is not rigid.
        """
        flat_K = self.K.reshape(-1, 3, 3)  # [N, 3, 3]
        flat_pose = self.cam_from_world.reshape(-1, 4, 4)  # [N, 4, 4]
        rotation = flat_pose[:, :3, :3].double()
        identity = torch.eye(3, dtype=torch.float64, device=rotation.device)
        last_row = flat_pose.new_tensor([0.0, 0.0, 0.0, 1.0])
        problems = {
            "K has a value that is not finite": ~torch.isfinite(flat_K).all(-1).all(-1),
            "cam_from_world has a value that is not finite": ~torch.isfinite(flat_pose).all(-1).all(-1),
            "K has a focal length that is not positive": ~((flat_K[:, 0, 0] > 0) & (flat_K[:, 1, 1] > 0)),
            "the last row of K is not 0 0 1 (is it transposed?)": (
                (flat_K[:, 2] - last_row[1:]).abs().amax(-1) > 1e-6
            ),
            "the last row of cam_from_world is not 0 0 0 1 (is it transposed?)": (
                (flat_pose[:, 3] - last_row).abs().amax(-1) > 1e-6
            ),
            "the rotation of cam_from_world is not orthonormal (is it scaled?)": ~(
                (rotation @ rotation.mT - identity).abs().amax((-1, -2)) < 1e-2
            ),
            "the rotation of cam_from_world mirrors the world (is one axis flipped?)": (
                torch.linalg.det(rotation) < 0
            ),
        }
        for problem, bad in problems.items():
            if bool(bad.any()):
                index = int(bad.nonzero()[0])
                where = f"{name} {index}" if self.K.dim() > 2 else name
                raise InputError(f"{where}: {problem}")
        return self

    # ---- views of the same data ----------------------------------------------------------------------------

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes; empty for a single camera."""
        return self.K.shape[:-2]

    def __getitem__(self, index: int | slice | Tensor | tuple[int | slice | None, ...] | None) -> Camera:
        """Index the leading batch axes."""
        return replace(self, K=self.K[index], cam_from_world=self.cam_from_world[index])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Camera:
        """The same camera on another device, or in another float type."""
        return replace(self, K=self.K.to(device, dtype), cam_from_world=self.cam_from_world.to(device, dtype))

    # ---- geometry ------------------------------------------------------------------------------------------

    @property
    def world_from_cam(self) -> Tensor:
        """Rigid transform from camera to world, [..., 4, 4]: the inverse of cam_from_world."""
        rotation = self.cam_from_world[..., :3, :3]
        translation = self.cam_from_world[..., :3, 3:]
        top = torch.cat([rotation.mT, -rotation.mT @ translation], dim=-1)
        return torch.cat([top, self.cam_from_world[..., 3:, :]], dim=-2)

    @property
    def centre(self) -> Tensor:
        """Position of the camera in the world, [..., 3]."""
        return self.world_from_cam[..., :3, 3]

    def relative_to(self, reference: Camera) -> Camera:
        """Return the same cameras in a world whose origin and axes are those of a (single) reference camera.

        In float64, this keeps precision for scenes far from their origin (map coordinates).
        """
        return replace(self, cam_from_world=self.cam_from_world @ reference.world_from_cam)

    def project(self, points_world: Tensor) -> tuple[Tensor, Tensor]:
        """Project world points into the image.

        Args:
            points_world: [..., N, 3], in the scene's unit.

        Returns:
            Pixel coordinates (x, y), [..., N, 2], and depth z, [..., N]. Depth may be zero or negative (the
            point is behind the camera): the caller decides what that means.
        """
        rotation, translation = self.cam_from_world[..., :3, :3], self.cam_from_world[..., :3, 3]
        points_cam = points_world @ rotation.mT + translation[..., None, :]  # [..., N, 3]
        depth = points_cam[..., 2]
        homogeneous = points_cam @ self.K.mT  # [..., N, 3]
        return homogeneous[..., :2] / homogeneous[..., 2:], depth

    def unproject(self, pixels: Tensor, depth: Tensor) -> Tensor:
        """Find the world points that pixels see.

        Args:
            pixels: Coordinates (x, y), [..., N, 2].
            depth: z of the camera frame, [..., N], in the scene's unit.

        Returns:
            World points, [..., N, 3].
        """
        ones = torch.ones_like(pixels[..., :1])
        rays = torch.cat([pixels, ones], dim=-1) @ inverse_3x3(self.K).mT  # [..., N, 3], z = 1
        points_cam = rays * depth[..., None]
        rotation, translation = self.cam_from_world[..., :3, :3], self.cam_from_world[..., :3, 3]
        points: Tensor = (points_cam - translation[..., None, :]) @ rotation
        return points

    def pixel_grid(self) -> Tensor:
        """Pixel centres of the image, [height, width, 2], on this camera's device and in its dtype."""
        return pixel_centres(self.height, self.width, device=self.K.device, dtype=self.K.dtype)

    # ---- image operations ----------------------------------------------------------------------------------

    def resized(self, width: int, height: int) -> Camera:
        """The camera of the same image resized to width x height."""
        return replace(
            self, K=self._scaled_K(width / self.width, height / self.height), width=width, height=height
        )

    def scaled(self, factor: float) -> Camera:
        """The camera of the image at another scale: K's first two rows times the factor, size rounded."""
        width, height = max(1, round(self.width * factor)), max(1, round(self.height * factor))
        return replace(self, K=self._scaled_K(factor, factor), width=width, height=height)

    def _scaled_K(self, x_factor: float, y_factor: float) -> Tensor:  # noqa: N802  K is what everybody calls it
        """K with its first two rows multiplied; copies nothing to a GPU, which would wait for the GPU."""
        K = self.K.clone()
        K[..., 0, :] *= x_factor
        K[..., 1, :] *= y_factor
        return K

    def cropped(self, left: int, top: int, width: int, height: int) -> Camera:
        """The camera of a window of the image; the window may reach beyond it (padding).

        Args:
            left: First column of the window, in pixels.
            top: First row of the window, in pixels.
            width: Width of the window, in pixels.
            height: Height of the window, in pixels.
        """
        shift = torch.zeros_like(self.K)
        shift[..., 0, 2] = left
        shift[..., 1, 2] = top
        return replace(self, K=self.K - shift, width=width, height=height)
