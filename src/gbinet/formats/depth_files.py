"""Depth maps as files; the suffix says which format.

| suffix        | format                                                   |
|---------------|----------------------------------------------------------|
| `.npz`        | `depth`, `confidence`, `made_by`, `K`, `cam_from_world`, `photo`: what `gbinet` writes |
| `.npy`        | one array                                                |
| `.pfm`        | portable float map                                       |
| `.png`        | 16-bit integers: choose the scale (0.001 = millimetres)  |
| `.tif .tiff`  | float32 TIFF                                             |
| `.bin`        | COLMAP dense map                                         |
| `.exr`        | OpenEXR, channel `Z` (extra `exr`)                       |
| `.dmap`       | OpenMVS depth map (reading only; it also needs a camera) |

A stored value times `scale` is the depth. Unknown depth is 0; NaN, infinite and negative values become 0.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gbinet.camera import Camera
from gbinet.depthmap import DepthMap
from gbinet.errors import FormatError, GBiNetError, InputError, check_positive
from gbinet.formats.atomic import atomic_file, atomic_path
from gbinet.formats.colmap_array import read_colmap_array, write_colmap_array
from gbinet.formats.exr import read_exr, write_exr
from gbinet.formats.image import decoded, opened
from gbinet.formats.limits import check_unpacked
from gbinet.formats.made_by import KEY, Maker, as_array, maker_of, record_maker
from gbinet.formats.openmvs import dmap_image_name, read_dmap
from gbinet.formats.pfm import read_pfm, write_pfm
from gbinet.formats.reading import NPY_HEADER, is_file, open_sized
from gbinet.names import file_stem, printable

Array = np.ndarray[Any, Any]

_MAX_NPY_HEADER = 10_000


def read_depth(path: str | Path, scale: float = 1.0) -> Array:
    """Read a depth map -> float32 [H, W], 0 = unknown."""
    path = Path(path)
    check_positive(f"{path}: the scale of stored depths", scale)
    values = _handler(_READERS, path)(path)
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim != 2 or values.size == 0:
        raise FormatError(path, f"a depth map is [H, W], this file holds {list(values.shape)}", "header")
    return np.require(_clean(values, scale), requirements="W")  # what was read is often locked


def read_confidence(path: str | Path) -> Array | None:
    """The confidence of a depth map, float32 [H, W] in [0, 1], where its file holds one. NaN counts as 0."""
    path = Path(path)
    if path.suffix.lower() == ".dmap":
        found = read_dmap(path).confidence
        return None if found is None else np.nan_to_num(found).clip(0, 1)  # OpenMVS adds them up
    values = _read_npz(path, "confidence") if path.suffix.lower() == ".npz" else None
    if values is None:
        return None
    confidence = np.nan_to_num(values.astype(np.float32))
    if confidence.size and (confidence.min() < 0 or confidence.max() > 1):
        reach = f"{confidence.min():g} to {confidence.max():g}"
        raise FormatError(path, f"confidence must lie between 0 and 1, and is {reach}", "confidence")
    return confidence


def read_depth_map(path: str | Path, camera: Camera | None = None, scale: float = 1.0) -> DepthMap:
    """Read depth, confidence and camera.

    `camera` is that of the full image and is resized to the map; None = the one that the file holds (.npz).
    """
    depth, confidence = read_depth(path, scale), read_confidence(path)
    camera = camera if camera is not None else read_depth_camera(path)
    if camera is None:
        raise InputError(
            f"{path}: holds no camera (only an .npz of gbinet has K and cam_from_world); give one: "
            "read_depth_map(path, camera), for example the camera of a view of load_scene(folder)"
        )
    height, width = depth.shape
    if confidence is not None and confidence.shape != depth.shape:
        raise FormatError(
            path, f"confidence is {list(confidence.shape)}, depth {list(depth.shape)}", "confidence"
        )
    return DepthMap(
        torch.from_numpy(depth),
        camera.resized(width, height),
        None if confidence is None else torch.from_numpy(confidence),
        maker_of(path),
    )


def read_depth_camera(path: str | Path) -> Camera | None:
    """The camera that an .npz holds, of the map's own size; None where it has none."""
    if Path(path).suffix.lower() != ".npz":
        return None
    K, pose = (_read_npz(Path(path), key) for key in ("K", "cam_from_world"))
    if K is None or pose is None:
        return None
    height, width = read_depth(path).shape
    intrinsics, cam_from_world = (torch.from_numpy(v.astype(np.float64)) for v in (K, pose))
    return Camera(intrinsics, cam_from_world, width, height).check(str(path))


def npz_intact(path: Path) -> bool:
    """Whether the checksums of all arrays in an .npz are right."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # broken archives fail in many ways
        return False


def write_depth(
    path: str | Path,
    depth: Array | Tensor,
    confidence: Array | Tensor | None = None,
    scale: float = 1.0,
    made_by: Maker | None = None,
    camera: Camera | None = None,
    photo: str | None = None,
) -> Path:
    """Write a depth map [H, W]. `made_by`: what predicted it, if so.

    Confidence, the map's camera and the name of its photo are kept only by `.npz`.
    """
    path = Path(path)
    values = _to_array(depth)
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"{path}: a depth map is [H, W], got {list(values.shape)}")
    check_positive(f"{path}: the scale of stored depths", scale)
    values = _clean(values, 1.0 / scale)
    if path.suffix.lower() == ".npz":
        more = _camera_arrays(camera, photo)
        if confidence is not None:
            more["confidence"] = _to_array(confidence)
        _write_npz(path, values, made_by, more)
    else:
        write = _handler(_WRITERS, path)
        record_maker(path, made_by)
        write(path, values)
    return path


def write_depth_map(path: str | Path, depth_map: DepthMap, photo: str | None = None) -> Path:
    """Write a depth map with all that is known about it. `photo`: the name of its photo's file."""
    made_by, camera = depth_map.made_by, depth_map.camera
    return write_depth(path, depth_map.depth, depth_map.confidence, 1.0, made_by, camera, photo)


def depth_files_in(folder: str | Path) -> dict[str, Path]:
    """Name of a view -> its depth map, over all files in a folder.

    A file is named like its view (`NAME.npz` and so on), or holds the name of its photo (OpenMVS'
    `depth0000.dmap`), or is named like its photo (COLMAP's `NAME.jpg.geometric.bin`, before photometric
    ones). Of several files of one view, the first in this order counts.
    """
    best: dict[str, tuple[tuple[int, int], Path]] = {}
    order = list(_READERS)
    for path in sorted(Path(folder).iterdir()):
        if path.suffix.lower() not in _READERS or not is_file(path):
            continue
        for rank, name in _view_names(path):
            key = (rank, order.index(path.suffix.lower()))
            if name not in best or key < best[name][0]:
                best[name] = (key, path)
    return {name: path for name, (_, path) in best.items()}


def _view_names(path: Path) -> list[tuple[int, str]]:
    """(rank, name) of the views that a depth file may belong to; of several files, the least rank wins."""
    names = [(0, path.stem)]
    photo, _, method = path.stem.rpartition(".")
    if path.suffix.lower() == ".bin" and method in ("geometric", "photometric"):
        names = [(1 if method == "geometric" else 2, Path(photo).stem)]
    elif path.suffix.lower() == ".dmap":
        with suppress(FormatError):  # reading it reports what is wrong
            names.append((0, PurePosixPath(dmap_image_name(path)).stem))
    return [(rank, file_stem(name)) for rank, name in names]


# ---- helpers ----------------------------------------------------------------------------------------------


def _handler(table: dict[str, Callable[..., Any]], path: Path) -> Callable[..., Any]:
    suffix = path.suffix.lower()
    if suffix not in table:
        raise FormatError(path, f"unknown kind of depth file '{suffix}'; known: {', '.join(table)}")
    return table[suffix]


def _to_array(values: Array | Tensor) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _clean(values: Array, factor: float) -> Array:
    """float32, times the factor, with 0 for what is not a depth; copied only if something changes."""
    with np.errstate(over="ignore", invalid="ignore"):
        depth = values if factor == 1.0 else values * np.float64(factor)
        depth = depth.astype(np.float32, copy=False)
    unknown = ~(np.isfinite(depth) & (depth > 0))
    if depth[unknown].view(np.uint32).any():  # not all of them are zeros, to the last bit
        depth = np.where(unknown, np.float32(0), depth)
    return depth


@contextmanager
def _decoding(path: Path, stream: IO[bytes]) -> Iterator[None]:
    """Turn any error of a third-party decoder into a FormatError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters ends in an exception
            yield
    except GBiNetError:
        raise
    except Exception as error:
        problem = f"cannot be decoded: {error or type(error).__name__}"
        raise FormatError(path, problem, f"near byte {stream.tell()}") from error


# ---- NumPy ------------------------------------------------------------------------------------------------


def _read_npy(path: Path) -> Array:
    with open_sized(path) as (file, size), _decoding(path, file):
        return _read_npy_stream(path, file, size)


def _read_npy_stream(path: Path, file: Any, size: int) -> Array:
    """An array from a stream of `size` bytes; its header is checked before anything is allocated."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise FormatError(path, f"NumPy format version {version} is not supported", "header")
    with NPY_HEADER:
        shape, fortran_order, dtype = readers[version](file, max_header_size=_MAX_NPY_HEADER)
    if dtype.kind not in "fiu" or dtype.hasobject:
        raise FormatError(path, f"holds '{dtype}', not numbers", "header")
    count = 1
    for length in shape:
        count *= length
    needed = count * dtype.itemsize
    if min(shape, default=1) < 0 or needed > size:
        raise FormatError(path, f"cut short: an array {list(shape)} needs {needed} bytes", f"byte {size}")
    data = file.read(needed)
    if len(data) < needed:
        raise FormatError(path, f"cut short: {needed} bytes announced", f"byte {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")


def _read_npz(path: Path, key: str) -> Array | None:
    with open_sized(path) as (file, _), _decoding(path, file), zipfile.ZipFile(file) as archive:
        if f"{key}.npy" not in archive.namelist():
            return None
        member = archive.getinfo(f"{key}.npy")
        check_unpacked(path, member.file_size, f"'{key}'")
        with archive.open(member) as stream:
            return _read_npy_stream(path, stream, member.file_size)


def _read_npz_depth(path: Path) -> Array:
    depth = _read_npz(path, "depth")
    if depth is None:
        raise FormatError(path, "holds no array 'depth'", "zip directory")
    return depth


def _camera_arrays(camera: Camera | None, photo: str | None) -> dict[str, Array]:
    """The arrays K, cam_from_world and photo of an .npz, as far as they are known."""
    arrays: dict[str, Array] = {} if photo is None else {"photo": np.array(printable(photo))}
    if camera is not None:
        arrays |= {"K": camera.K.double().cpu().numpy()}
        arrays |= {"cam_from_world": camera.cam_from_world.double().cpu().numpy()}
    return arrays


def _write_npz(path: Path, depth: Array, made_by: Maker | None, more: dict[str, Array]) -> None:
    """Write depth [H, W], what made it and `more` arrays, confidence [H, W] among them."""
    arrays = {"depth": depth, **more}
    if "confidence" in arrays:
        confidence = arrays["confidence"]
        if confidence.shape != depth.shape:
            raise InputError(
                f"{path}: confidence is {list(confidence.shape)}, the depth map {list(depth.shape)}"
            )
        arrays["confidence"] = confidence.astype(np.float32, copy=False)
    if made_by is not None:
        arrays[KEY] = as_array(made_by)
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():  # like numpy.savez, which would copy the arrays first
            values = np.asarray(array, order="C")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
                file.write(values.data)


def _write_npy(path: Path, values: Array) -> None:
    with atomic_path(path) as temporary:
        np.save(temporary, values)


# ---- images -----------------------------------------------------------------------------------------------

# Bytes of a pixel, per mode of Pillow that has one channel of numbers.
_DEPTH_MODES = {"I;16": 2, "I;16B": 2, "I;16L": 2, "I": 4, "F": 4, "L": 1}
_MAX_RATIO = 1100  # a little more than the best compression that Deflate can reach


def _read_picture(path: Path) -> Array:
    with opened(path) as image:
        if image.format not in ("PNG", "TIFF") or image.mode not in _DEPTH_MODES:
            found = f"{image.format} '{image.mode}'"
            raise FormatError(
                path, f"a depth image is a PNG or TIFF with one channel of numbers, this is {found}", "header"
            )
        ratio = 1 if image.info.get("compression") == "raw" else _MAX_RATIO
        size, claimed = path.stat().st_size, image.width * image.height * _DEPTH_MODES[image.mode]
        if claimed > ratio * size:
            pixels = f"{image.width}x{image.height} pixels"
            raise FormatError(path, f"claims {pixels} in a file of {size} bytes", "header")
        return np.array(decoded(path, image))


def _write_png(path: Path, values: Array) -> None:
    largest = float(values.max())
    if largest >= 65535.5:
        raise InputError(
            f"{path}: depth {largest:g} does not fit into 16 bits; write with a larger scale, "
            f"at least {largest / 65535:.2g} times the present one"
        )
    _save_picture(path, np.rint(values).astype(np.uint16), "PNG")


def _write_tiff(path: Path, values: Array) -> None:
    _save_picture(path, values, "TIFF")


def _save_picture(path: Path, values: Array, format: str) -> None:
    with atomic_file(path) as file:
        Image.fromarray(values).save(file, format=format)


_READERS: dict[str, Callable[..., Any]] = {
    ".npz": _read_npz_depth,
    ".npy": _read_npy,
    ".pfm": read_pfm,
    ".png": _read_picture,
    ".tif": _read_picture,
    ".tiff": _read_picture,
    ".bin": read_colmap_array,
    ".exr": read_exr,
    ".dmap": lambda path: read_dmap(path).depth,
}
SUFFIXES = tuple(_READERS)  # of files that can be read as depth maps
_WRITERS: dict[str, Callable[..., Any]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".pfm": write_pfm,
    ".png": _write_png,
    ".tif": _write_tiff,
    ".tiff": _write_tiff,
    ".bin": write_colmap_array,
    ".exr": write_exr,
}
