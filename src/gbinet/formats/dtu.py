"""DTU's own evaluation files: `ObsMask*_10.mat` (what the scanner could see), `Plane*.mat` (the table)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError
from gbinet.formats.matlab import read_mat


@dataclass(frozen=True)
class ObservedVolume:
    """A grid of voxels; the centre of voxel (0, 0, 0) is at bounds[0]."""

    mask: NDArray[np.bool_]  # [X, Y, Z]: the scanner's reference covers this voxel
    bounds: NDArray[np.float64]  # [2, 3]: lowest and highest corner, BB in the file
    resolution: float  # size of a voxel, Res in the file


def read_observed_volume(path: str | Path) -> ObservedVolume:
    path = Path(path)
    found = _read_mat(path, ("ObsMask", "BB", "Res"))
    mask = found["ObsMask"]
    if mask.ndim != 3 or mask.dtype.kind not in "buif" or mask.size == 0:
        raise FormatError(path, f"ObsMask must be three-dimensional, found {_describe(mask)}")
    bounds = _numbers(path, "BB", found["BB"], (2, 3))
    if not (bounds[0] < bounds[1]).all():
        raise FormatError(path, f"BB must be a lower and an upper corner, found {bounds.tolist()}")
    resolution = float(_numbers(path, "Res", found["Res"], (1, 1))[0, 0])
    if not resolution > 0:
        raise FormatError(path, f"Res must be a positive size of a voxel, found {resolution:g}")
    return ObservedVolume(mask.astype(bool), bounds, resolution)


def read_plane(path: str | Path) -> NDArray[np.float64]:
    """Coefficients P of the table's plane, [4]; points x of the object have P . (x, 1) > 0."""
    path = Path(path)
    plane = _read_mat(path, ("P",))["P"]
    values: NDArray[np.float64] = _numbers(
        path, "P", plane.reshape(1, -1) if plane.size == 4 else plane, (1, 4)
    )[0]
    if not values[:3].any():
        raise FormatError(path, "P has no direction: its first three numbers are 0")
    return values


def _read_mat(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    found = read_mat(path, names)
    missing = [name for name in names if name not in found]
    if missing:
        raise FormatError(path, f"has no {', '.join(missing)} (of {', '.join(names)})")
    return found


def _numbers(path: Path, name: str, value: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.float64]:
    if value.shape != shape or value.dtype.kind not in "buif":
        raise FormatError(path, f"{name} must be {list(shape)} numbers, found {_describe(value)}")
    numbers = value.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise FormatError(path, f"{name} has a value that is not finite")
    return numbers


def _describe(value: NDArray[Any]) -> str:
    return f"{list(value.shape)} {value.dtype}"
