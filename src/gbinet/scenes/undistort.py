"""Photos of real lenses -> photos of a pinhole camera, in a cache that later runs use again.

pycolmap supplies the lens models; the resampling is our own: image, mask and depth go through one map.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gbinet.camera import Camera
from gbinet.errors import FormatError, SceneError
from gbinet.formats.colmap import ColmapCamera
from gbinet.formats.depth_files import read_depth, write_depth
from gbinet.formats.fingerprint import Fingerprints
from gbinet.formats.image import read_image, read_mask, upright, write_image
from gbinet.formats.limits import max_pixels
from gbinet.formats.made_by import maker_of
from gbinet.formats.optional import load_pycolmap

_VERSION = "2"  # part of every key: raise it when the resampling changes
_ROWS = 1 << 20  # pixels whose rays are computed at a time


@dataclass(frozen=True)
class Pinhole:
    """The pinhole camera that replaces a lens."""

    K: NDArray[np.float64]  # [3, 3]
    width: int
    height: int


@dataclass(frozen=True)
class Photo:
    """The files of one photo."""

    image: Path
    mask: Path | None = None
    depth: Path | None = None
    depth_scale: float = 1.0


class Undistorter:
    """Rewrites photos for pinhole cameras; without distortion, only their orientation may change."""

    def __init__(self, root: Path, cache: Path | None) -> None:
        self.root = root
        self._given = cache
        self._folder: Path | None = None
        self._hashes: Fingerprints | None = None
        self._maps: dict[str, tuple[Pinhole, Tensor]] = {}  # the last lens's map; lenses come in runs

    @property
    def folder(self) -> Path:
        """The cache, made when first needed: a scene without distortion writes nothing."""
        if self._folder is None:
            self._folder = self._given or _default_cache(self.root)
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SceneError(
                    f"{self._folder}: undistorted images cannot be kept here ({error.strerror}); "
                    "give another folder as `cache`"
                ) from error
        return self._folder

    @property
    def hashes(self) -> Fingerprints:
        if self._hashes is None:
            self._hashes = Fingerprints(self.folder / "fingerprints.json")
        return self._hashes

    def save_hashes(self) -> None:
        """Store the hashes of the photos: the next run need not read those that did not change."""
        if self._hashes is not None:
            self._hashes.save()

    def rewrite(
        self, name: str, photo: Photo, lens: ColmapCamera, *, stored: bool, turn: int = 1
    ) -> tuple[Photo, Pinhole]:
        """The photo as a pinhole camera sees it, from the cache or made now.

        `stored`: the lens belongs to the pixels as stored in the file, not to the upright image. `turn`: an
        EXIF orientation that is applied to what is written; the pinhole camera is that before the turn.
        """
        pinhole, grid = self._map(photo.image, lens)
        stem = f"{name}-{_key(photo, lens, stored, turn, self.hashes)}"
        lossy = photo.image.suffix.lower() in (".jpg", ".jpeg")
        image = self.folder / f"{stem}{'.jpg' if lossy else '.png'}"
        mask = self.folder / f"{stem}-mask.png" if photo.mask else None
        depth = self.folder / f"{stem}-depth.npz" if photo.depth else None
        size = (lens.width, lens.height)
        if not image.is_file():
            pixels = read_image(photo.image, stored=stored)
            _check_size(photo.image, pixels.shape, size)
            write_image(image, _turned(_resample(pixels, grid, "bilinear"), turn), quality=98)
        if photo.mask and mask and not mask.is_file():
            keep = _resample(read_mask(photo.mask, size, stored=stored), grid, "nearest")
            write_image(mask, _turned(keep, turn).astype(np.bool_))
        if photo.depth and depth and not depth.is_file():
            values = read_depth(photo.depth, photo.depth_scale)
            # Smaller depth maps are common; they only need the same field of view.
            values = _turned(_resample(values, grid, "nearest"), turn)
            write_depth(depth, values, made_by=maker_of(photo.depth))
        return Photo(image, mask, depth), pinhole

    def _map(self, path: Path, lens: ColmapCamera) -> tuple[Pinhole, Tensor]:
        key = f"{lens.model} {lens.width} {lens.height} {lens.params.tolist()}"
        if key not in self._maps:
            pinhole = undistorted_camera(path, lens)
            self._maps = {key: (pinhole, _sampling_grid(lens, pinhole))}
        return self._maps[key]


def undistorted_camera(path: Path, lens: ColmapCamera) -> Pinhole:
    """The pinhole camera that COLMAP would choose: no blank pixels at the borders, little lost."""
    if not lens.distorted:
        return Pinhole(lens.K, lens.width, lens.height)
    pycolmap, camera = load_pycolmap(), _pycolmap_camera(lens)
    # COLMAP's own limits for what a lens can be; beyond them its solvers need not end.
    if camera.has_bogus_params(0.05, 50.0, 100.0):
        raise FormatError(path, f"its camera is not a real lens: {lens.model} {lens.params.tolist()}")
    if lens.width * lens.height > max_pixels():
        raise FormatError(path, f"its camera claims {lens.width}x{lens.height} pixels; that is too large")
    try:
        flat = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), camera)
    except (ValueError, RuntimeError, IndexError) as error:
        raise FormatError(path, f"its camera cannot be undistorted ({error})") from error
    if not 1 <= flat.width * flat.height <= max_pixels():
        raise FormatError(path, f"undistorted, it would have {flat.width}x{flat.height} pixels")
    return Pinhole(np.asarray(flat.calibration_matrix(), dtype=np.float64), flat.width, flat.height)


def _pycolmap_camera(lens: ColmapCamera) -> Any:
    return load_pycolmap().Camera(
        model=lens.model, width=lens.width, height=lens.height, params=lens.params.tolist()
    )


def _sampling_grid(lens: ColmapCamera, pinhole: Pinhole) -> Tensor:
    """Where each pinhole pixel lies in the photo, in grid_sample's units, [1, H, W, 2]."""
    size = torch.tensor([lens.width, lens.height], dtype=torch.float64)
    camera = Camera(
        torch.from_numpy(pinhole.K), torch.eye(4, dtype=torch.float64), pinhole.width, pinhole.height
    )
    parts = []
    model = _pycolmap_camera(lens) if lens.distorted else None
    every = camera.pixel_grid().reshape(-1, 2)
    for start in range(0, len(every), _ROWS):
        rows = every[start : start + _ROWS]
        pixels = rows
        if model is not None:
            rays = camera.unproject(rows, torch.ones(len(rows), dtype=torch.float64))  # [N, 3]
            pixels = torch.from_numpy(np.asarray(model.img_from_cam(rays.numpy())))
        # grid_sample without align_corners covers the image with [-1, 1]: the same pixel rule as ours.
        parts.append((2 * pixels / size - 1).nan_to_num(nan=2.0).float())
    return torch.cat(parts).reshape(1, pinhole.height, pinhole.width, 2)


def _resample(pixels: NDArray[Any], grid: Tensor, mode: str) -> NDArray[Any]:
    """[H, W] or [H, W, C] through the map; what lies outside the photo is 0."""
    image = torch.tensor(pixels, dtype=torch.float32)
    planes = image[None, None] if image.dim() == 2 else image.permute(2, 0, 1)[None]  # [1, C, H, W]
    out = torch.nn.functional.grid_sample(planes, grid, mode=mode, align_corners=False)[0]
    array = out[0].numpy() if image.dim() == 2 else out.permute(1, 2, 0).numpy()
    return array.round().astype(np.uint8) if pixels.dtype == np.uint8 else array.astype(pixels.dtype)


def _turned(pixels: NDArray[Any], turn: int) -> NDArray[Any]:
    return np.ascontiguousarray(upright(pixels, turn))


def _check_size(path: Path, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    if (shape[1], shape[0]) != size:
        raise FormatError(path, f"is {shape[1]}x{shape[0]}, its camera says {size[0]}x{size[1]}")


def _key(photo: Photo, lens: ColmapCamera, stored: bool, turn: int, hashes: Fingerprints) -> str:
    """Hash of everything that the result depends on: the bytes of the files, and the lens."""
    how = (stored, turn, photo.depth_scale)
    parts = [_VERSION, lens.model, lens.width, lens.height, lens.params.tolist(), *how]
    for path in (photo.image, photo.mask, photo.depth):
        if path is not None:
            parts += [path.name, hashes.of(path)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _default_cache(root: Path) -> Path:
    beside = root / ".gbinet_cache"
    try:
        beside.mkdir(exist_ok=True)
        return beside
    except OSError:  # a read-only folder
        key = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / "gbinet_cache" / key
