"""Files of Tanks and Temples: camera trajectories (.log), alignment (_trans.txt), crop volume (.json)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gbinet.errors import FormatError, InputError
from gbinet.formats.atomic import write_text
from gbinet.formats.reading import read_json
from gbinet.formats.textfile import lines_of

_MAX_TEXT = 1 << 26  # bytes; a log of every frame of an hour of film has 60 MB
_LINES_PER_POSE = 5


def read_log(path: str | Path) -> NDArray[np.float64]:
    """Poses of a trajectory, world_from_cam [V, 4, 4], in the order of the file.

    Each pose is a line of three integers (of which benchmark and readers use none) and four rows of a matrix.
    """
    path = Path(path)
    lines = lines_of(path, _MAX_TEXT)
    if not lines:
        raise FormatError(path, "holds no camera poses")
    if len(lines) % _LINES_PER_POSE:
        raise FormatError(
            path, f"a pose takes 5 lines, but the file has {len(lines)} lines that are not blank"
        )
    poses = np.empty((len(lines) // _LINES_PER_POSE, 4, 4))
    for number, pose in enumerate(poses):
        header, *rows = lines[number * _LINES_PER_POSE : (number + 1) * _LINES_PER_POSE]
        header.floats(3)
        pose[:] = [row.floats(4) for row in rows]
        if not np.allclose(pose[3], [0, 0, 0, 1]):
            raise rows[3].error(f"the last row of a pose is 0 0 0 1, found {rows[3].text[:60]!r}")
    return poses


def write_log(path: str | Path, world_from_cam: NDArray[np.float64]) -> Path:
    """Write poses [V, 4, 4] as a trajectory."""
    path = Path(path)
    if world_from_cam.ndim != 3 or world_from_cam.shape[1:] != (4, 4):
        raise InputError(f"{path}: poses must be [V, 4, 4], got {list(world_from_cam.shape)}")
    blocks = []
    for number, pose in enumerate(world_from_cam):
        rows = "\n".join(" ".join(f"{value:.12f}" for value in row) for row in pose)
        blocks.append(f"{number} {number} 0\n{rows}\n")
    return write_text(path, "".join(blocks))


def read_matrix(path: str | Path) -> NDArray[np.float64]:
    """A 4x4 transform as text: what `<scene>_trans.txt` holds."""
    path = Path(path)
    lines = lines_of(path, 1 << 16)
    if len(lines) != 4:
        raise FormatError(path, f"a transform has 4 rows, found {len(lines)}")
    return np.array([line.floats(4) for line in lines])


def read_mapping(path: str | Path) -> NDArray[np.int64]:
    """Which frames of the film (from 0) the reference trajectory uses: `<scene>_mapping_reference.txt`."""
    path = Path(path)
    lines = lines_of(path, _MAX_TEXT)
    if len(lines) < 3:
        raise FormatError(path, "a mapping has two counts and a row per frame")
    sampled, total = lines[0].integer(1, len(lines) - 2), lines[1].integer(1, 10**7)
    rows = np.array([line.floats(2) for line in lines[2 : 2 + sampled]])
    frames: NDArray[np.int64] = rows[:, 1].astype(np.int64) - 1
    if frames.min() < 0 or frames.max() >= total:
        raise FormatError(path, f"frame numbers must lie in [1, {total}]")
    return frames


@dataclass(frozen=True)
class CropVolume:
    """A polygon, extruded along one axis."""

    axis: int  # 0, 1, 2: along this axis the volume is cut at low and high
    low: float
    high: float
    polygon: NDArray[np.float64]  # [P, 2]: the two other coordinates, in the order x, y, z

    def contains(self, points: NDArray[np.floating]) -> NDArray[np.bool_]:
        """[N, 3] -> [N] bool, by the even-odd rule in the polygon's plane."""
        first, second = (k for k in range(3) if k != self.axis)
        along = points[:, self.axis]
        u, v = points[:, first].astype(np.float64), points[:, second].astype(np.float64)
        crossings_below = np.zeros(len(points), dtype=np.int32)
        for (u0, v0), (u1, v1) in zip(self.polygon, np.roll(self.polygon, -1, axis=0), strict=True):
            if v0 == v1:
                continue
            crossed = ((v0 < v) & (v1 >= v)) | ((v1 < v) & (v0 >= v))
            crossings_below += crossed & (u0 + (v - v0) / (v1 - v0) * (u1 - u0) < u)
        return np.asarray((along >= self.low) & (along <= self.high) & (crossings_below % 2 == 1))


def read_crop(path: str | Path) -> CropVolume:
    """Open3D's SelectionPolygonVolume: what `<scene>.json` holds."""
    path = Path(path)
    content = read_json(path)
    if not isinstance(content, dict):
        raise FormatError(path, "is not a crop volume: the JSON is not an object")
    axis = {"X": 0, "Y": 1, "Z": 2}.get(str(content.get("orthogonal_axis")).upper())
    if axis is None:
        raise FormatError(
            path, f"orthogonal_axis must be X, Y or Z, found {content.get('orthogonal_axis')!r}"
        )
    limits = _floats(path, content, "axis_min", 0), _floats(path, content, "axis_max", 0)
    polygon = _floats(path, content, "bounding_polygon", 2)
    if polygon.shape[1] != 3 or len(polygon) < 3:
        raise FormatError(path, f"bounding_polygon needs 3 or more points, found {list(polygon.shape)}")
    if not float(limits[0]) < float(limits[1]):
        raise FormatError(path, f"axis_min {limits[0]:g} must be below axis_max {limits[1]:g}")
    return CropVolume(axis, float(limits[0]), float(limits[1]), np.delete(polygon, axis, axis=1))


def _floats(path: Path, content: dict[str, object], key: str, ndim: int) -> NDArray[np.float64]:
    try:
        values = np.array(content.get(key), dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(path, f"{key} must be numbers") from error
    if values.ndim != ndim or not np.isfinite(values).all():
        raise FormatError(path, f"{key} is missing or not a {'number' if ndim == 0 else 'list of points'}")
    return values
