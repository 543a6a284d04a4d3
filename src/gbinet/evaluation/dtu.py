"""DTU's evaluation of point clouds, as published: accuracy, completeness and overall, in millimetres.

The steps follow the public Python version of the Matlab code, which agrees with it to 0.02 %:
thin the cloud at 0.2 mm in random order; keep what lies in the bounding box with its margin; accuracy is over
the kept points in observed voxels; completeness is over reference points above the table; distances of 20 mm
and more do not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gbinet.errors import InputError, SceneError, check_not_negative
from gbinet.evaluation.cloud import CloudDistances, checked, distance_figures, load_points
from gbinet.evaluation.nearest import Points, nearest_distances, thin
from gbinet.formats.dtu import ObservedVolume, read_observed_volume, read_plane
from gbinet.progress import Progress


@dataclass(frozen=True)
class DTUProtocol:
    """The published values; other ones give scores that cannot be compared with anybody's."""

    thinning: float = 0.2  # mm between points; 0 leaves the cloud as it is
    margin: float = 60.0  # mm kept below the bounding box; twice as much above
    max_distance: float = 20.0  # mm; larger distances are not counted
    seed: int = 0  # of the random order of thinning

    def __post_init__(self) -> None:
        check_not_negative("--seed", self.seed)


@dataclass(frozen=True)
class DTUReference:
    """What DTU provides for one scan."""

    observed: ObservedVolume
    plane: NDArray[np.float64]  # [4]
    points: Points  # [M, 3], already at 0.2 mm


@dataclass(frozen=True)
class DTUScore:
    """In millimetres; NaN where no distance counts, because all are 20 mm or more."""

    accuracy: float
    completeness: float
    overall: float
    accuracy_median: float
    completeness_median: float
    points: int  # in the file
    thinned: int  # after thinning
    observed: int  # of these in the bounding box and in observed voxels: accuracy is over these
    reference: int  # reference points above the table: completeness is over these


def reference_files(folder: str | Path, scan: int) -> tuple[Path, Path, Path]:
    """`ObsMask/ObsMask1_10.mat`, `ObsMask/Plane1.mat` and `Points/stl/stl001_total.ply`."""
    root = Path(folder)
    if not root.is_dir():
        raise SceneError(f"{root}: there is no such folder; it should be DTU's 'SampleSet/MVS Data'")
    masks = root / "ObsMask"
    points = root / "Points" / "stl" / f"stl{scan:03}_total.ply"
    return masks / f"ObsMask{scan}_10.mat", masks / f"Plane{scan}.mat", points


def load_reference(folder: str | Path, scan: int) -> DTUReference:
    """Read what DTU provides for one scan."""
    observed, plane, points = reference_files(folder, scan)
    return DTUReference(read_observed_volume(observed), read_plane(plane), load_points(points))


def evaluate_scan(
    points: Points,
    reference: DTUReference,
    protocol: DTUProtocol | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> tuple[DTUScore, CloudDistances]:
    """The score, and its distances: of observed points, and of reference points above the table."""
    protocol = protocol or DTUProtocol()
    total = len(checked(points, "the cloud"))
    if protocol.thinning > 0:
        points = points[thin(points, protocol.thinning, seed=protocol.seed, device=device, progress=progress)]
    thinned = len(points)
    points = points[in_box(points, reference.observed, protocol.margin)]
    if len(points) == 0:
        raise InputError(
            f"none of the {total:,} points lies in the scan's box {reference.observed.bounds.tolist()} "
            f"(with {protocol.margin:g} mm margin); is the cloud in millimetres and in DTU's frame?"
        )
    seen = points[in_observed(points, reference.observed)]
    above = reference.points[above_plane(reference.points, reference.plane)]
    nearest = partial(nearest_distances, max_distance=protocol.max_distance, device=device, progress=progress)
    to_reference = nearest(seen, reference.points, what="accuracy")
    to_points = nearest(above, points, what="completeness")
    score = DTUScore(
        **distance_figures(to_reference, to_points, protocol.max_distance),
        points=total,
        thinned=thinned,
        observed=len(seen),
        reference=len(above),
    )
    return score, CloudDistances(seen, to_reference, above, to_points)


def in_box(points: Points, volume: ObservedVolume, margin: float) -> NDArray[np.bool_]:
    low, high = volume.bounds[0] - margin, volume.bounds[1] + 2 * margin
    return np.asarray(((points >= low) & (points < high)).all(axis=1))


def in_observed(points: Points, volume: ObservedVolume) -> NDArray[np.bool_]:
    """Whether the voxel whose centre is nearest to a point is in the grid and observed, [N]."""
    voxels = np.around((points - volume.bounds[0]) / volume.resolution).astype(np.int64)
    inside = ((voxels >= 0) & (voxels < volume.mask.shape)).all(axis=1)
    x, y, z = voxels[inside].T
    result = np.zeros(len(points), dtype=bool)
    result[inside] = volume.mask[x, y, z]
    return result


def above_plane(points: Points, plane: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray(points.astype(np.float64) @ plane[:3] + plane[3] > 0)


def mean_score(scores: list[DTUScore]) -> DTUScore:
    """The mean over scans of each column (means of means, as published); counts are summed."""
    if not scores:
        raise InputError("there are no scans to average")
    values: dict[str, Any] = {}
    for field in fields(DTUScore):
        column = [getattr(score, field.name) for score in scores]
        values[field.name] = sum(column) if field.type == "int" else math.fsum(column) / len(column)
    return DTUScore(**values)


# Names that common programs give to the cloud of a scan, best known first.
CLOUD_NAMES = (
    "scan{scan}/cloud.ply",
    "scan{scan}.ply",
    "scan{scan:03}.ply",
    "{scan:03}.ply",
    "mvsnet{scan:03}_l3.ply",
)


def find_cloud(folder: str | Path, scan: int, pattern: str | None = None) -> Path:
    """The cloud of a scan; `pattern` names files by `{scan}` or `{scan:03}`."""
    root = Path(folder)
    names = CLOUD_NAMES if pattern is None else (pattern,)
    for name in names:
        try:
            path = root / name.format(scan=scan)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise InputError(f"the pattern '{name}' must name the scan as {{scan}} or {{scan:03}}") from error
        if path.is_file():
            return path
    tried = ", ".join(name.format(scan=scan) for name in names)
    raise SceneError(
        f"{root}: found no cloud of scan {scan} (tried {tried}); name yours by a pattern with {{scan:03}}"
    )
