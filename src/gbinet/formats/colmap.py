"""COLMAP sparse models: binary and text, with or without the `rigs` and `frames` of COLMAP 4.

Parsed by hand rather than by pycolmap: on broken files pycolmap allocates what a header claims, and can hang.
In all versions `images.*` holds the pose of every image, so rigs and frames need not be read. Tests compare
with pycolmap. What is written has the layout that every version reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import atomic_path
from gbinet.formats.reading import is_file
from gbinet.scene import View

MAX_SIDE = 1 << 17  # pixels; no image is larger


@dataclass(frozen=True)
class CameraModel:
    """A COLMAP camera model: how its parameters begin, and whether all-zero distortion makes it a pinhole."""

    id: int
    num_params: int
    single_focal: bool  # f, cx, cy, ... instead of fx, fy, cx, cy, ...
    polynomial: bool  # with all distortion parameters zero, it is a pinhole


MODELS: dict[str, CameraModel] = {
    "SIMPLE_PINHOLE": CameraModel(0, 3, True, True),
    "PINHOLE": CameraModel(1, 4, False, True),
    "SIMPLE_RADIAL": CameraModel(2, 4, True, True),
    "RADIAL": CameraModel(3, 5, True, True),
    "OPENCV": CameraModel(4, 8, False, True),
    "OPENCV_FISHEYE": CameraModel(5, 8, False, False),
    "FULL_OPENCV": CameraModel(6, 12, False, True),
    "FOV": CameraModel(7, 5, False, False),
    "SIMPLE_RADIAL_FISHEYE": CameraModel(8, 4, True, False),
    "RADIAL_FISHEYE": CameraModel(9, 5, True, False),
    "THIN_PRISM_FISHEYE": CameraModel(10, 12, False, False),
    "RAD_TAN_THIN_PRISM_FISHEYE": CameraModel(11, 16, False, False),
    "SIMPLE_DIVISION": CameraModel(12, 4, True, True),
    "DIVISION": CameraModel(13, 5, False, True),
    "SIMPLE_FISHEYE": CameraModel(14, 3, True, False),
    "FISHEYE": CameraModel(15, 4, False, False),
    "EUCM": CameraModel(16, 6, False, False),
}
MODEL_NAMES = {model.id: name for name, model in MODELS.items()}


@dataclass(frozen=True)
class ColmapCamera:
    id: int
    model: str  # key of MODELS
    width: int
    height: int
    params: NDArray[np.float64]

    @property
    def K(self) -> NDArray[np.float64]:  # noqa: N802  [3, 3] of the pinhole part; K is what everybody calls it
        fx, *rest = self.params
        fy, cx, cy = (fx, *rest[:2]) if MODELS[self.model].single_focal else rest[:3]
        return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])

    @property
    def distorted(self) -> bool:
        model = MODELS[self.model]
        extra = self.params[3 if model.single_focal else 4 :]
        return not model.polynomial or bool(np.any(extra != 0))

    def resized(self, width: int, height: int) -> ColmapCamera:
        """The camera of a resized copy of its images."""
        x, y = width / self.width, height / self.height
        single = MODELS[self.model].single_focal
        factors = np.array([(x + y) / 2, x, y] if single else [x, y, x, y])
        params = self.params.copy()
        params[: len(factors)] *= factors
        return replace(self, width=width, height=height, params=params)


@dataclass(frozen=True)
class ColmapImage:
    id: int
    name: str  # path below the image folder
    camera_id: int
    cam_from_world: NDArray[np.float64]  # [4, 4]
    pixels: NDArray[np.float64] | None = None  # [N, 2] observations, if they were asked for
    point_ids: NDArray[np.int64] | None = None  # [N] the point that each of them sees, -1 = none


@dataclass(frozen=True)
class ColmapPoints:
    ids: NDArray[np.int64]  # [P]
    xyz: NDArray[np.float64]  # [P, 3]
    rgb: NDArray[np.uint8]  # [P, 3]
    track_start: NDArray[np.int64]  # [P + 1]
    image_ids: NDArray[np.int64]  # [T] tracks, concatenated
    indices: NDArray[np.int64] | None = None  # [T] which observation of that image it is, for writing
    error: NDArray[np.float64] | None = None  # [P] mean reprojection error in pixels; -1 = not known

    @property
    def known_error(self) -> NDArray[np.float64]:
        """[P], -1 where it is not known, as COLMAP has it."""
        return np.full(len(self.ids), -1.0) if self.error is None else self.error


@dataclass(frozen=True)
class ColmapModel:
    folder: Path
    cameras: dict[int, ColmapCamera]
    images: list[ColmapImage]  # by name
    points: ColmapPoints


def is_model(folder: Path) -> bool:
    return _suffix(folder) is not None


def read_model(folder: Path, *, observations: bool = False) -> ColmapModel:
    """Read a model folder; binary files win over text ones. 2D observations only if asked for."""
    from gbinet.formats import colmap_binary, colmap_text  # these import the classes above

    suffix = _suffix(folder)
    if suffix is None:
        raise FormatError(folder, "holds no COLMAP model (cameras, images and points3D as .bin or .txt)")
    reader = colmap_binary if suffix == ".bin" else colmap_text
    images_path = folder / f"images{suffix}"
    cameras = reader.read_cameras(folder / f"cameras{suffix}")
    images = reader.read_images(images_path, observations=observations)
    points_path = folder / f"points3D{suffix}"
    points = reader.read_points(points_path) if points_path.exists() else _no_points()
    names: set[str] = set()
    ids: set[int] = set()
    for image in images:
        if image.camera_id not in cameras:
            raise FormatError(images_path, f"image {image.name!r}: there is no camera {image.camera_id}")
        if image.name in names or image.id in ids:
            raise FormatError(images_path, f"image {image.name!r} (id {image.id}) is listed twice")
        names.add(image.name)
        ids.add(image.id)
    return ColmapModel(folder, cameras, sorted(images, key=lambda image: image.name), points)


def write_model(folder: Path, model: ColmapModel, text: bool = False) -> None:
    from gbinet.formats import colmap_binary, colmap_text

    writer, suffix = (colmap_text, ".txt") if text else (colmap_binary, ".bin")
    contents = {
        "cameras": writer.cameras_bytes(model.cameras),
        "images": writer.images_bytes(model.images),
        "points3D": writer.points_bytes(model.points),
    }
    for name, content in contents.items():
        with atomic_path(folder / f"{name}{suffix}") as temporary:
            temporary.write_bytes(content)


def pinhole_parameters(view: View) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy; formats that know only these cannot hold a skewed camera."""
    K = view.camera.K.double()
    if abs(float(K[0, 1])) > 1e-6 * float(K[0, 0]):
        raise InputError(f"the camera of view {view.name} is skewed, which this format cannot express")
    return float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])


def _suffix(folder: Path) -> str | None:
    for suffix in (".bin", ".txt"):
        if all(is_file(folder / f"{name}{suffix}") for name in ("cameras", "images")):
            return suffix
    return None


def _no_points() -> ColmapPoints:
    none = np.zeros(0, np.int64)
    return ColmapPoints(none, np.zeros((0, 3)), np.zeros((0, 3), np.uint8), np.zeros(1, np.int64), none)


# ---- shared by text and binary -----------------------------------------------------------------------------


def make_camera(
    path: Path, position: str, id: int, model: str, width: int, height: int, params: NDArray[np.float64]
) -> ColmapCamera:
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise FormatError(path, f"camera {id} has an image size of {width}x{height}", position)
    camera = ColmapCamera(id, model, width, height, params)
    if not np.isfinite(params).all():
        raise FormatError(path, f"camera {id} has a parameter that is not finite", position)
    if not (camera.K[0, 0] > 0 and camera.K[1, 1] > 0):
        raise FormatError(path, f"camera {id} has a focal length that is not positive", position)
    return camera


def make_pose(path: Path, position: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """qw qx qy qz tx ty tz -> cam_from_world, [4, 4]."""
    # Quaternions are of unit length; anything far from it is not rounding, and squares must not overflow.
    usable = np.isfinite(values).all() and np.abs(values[:4]).max() < 1e6
    norm = float(np.linalg.norm(values[:4])) if usable else 0.0
    if norm < 1e-6:
        raise FormatError(path, "the pose of an image is not finite, or its quaternion is zero", position)
    w, x, y, z = values[:4] / norm
    pose = np.eye(4)
    pose[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    pose[:3, 3] = values[4:7]
    return pose


def pose_values(cam_from_world: NDArray[np.float64]) -> tuple[float, ...]:
    """cam_from_world [4, 4] -> qw qx qy qz tx ty tz."""
    return tuple(map(float, [*quaternion(cam_from_world[:3, :3]), *cam_from_world[:3, 3]]))


def quaternion(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation matrix -> unit quaternion (w, x, y, z), w >= 0: the eigenvector of Bar-Itzhack's matrix."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation
    matrix = np.array(
        [
            [xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [zy - yz, xx - yy - zz, xy + yx, xz + zx],
            [xz - zx, xy + yx, yy - xx - zz, yz + zy],
            [yx - xy, xz + zx, yz + zy, zz - xx - yy],
        ]
    )
    vector: NDArray[np.float64] = np.linalg.eigh(matrix)[1][:, -1]
    return vector if vector[0] >= 0 else -vector
